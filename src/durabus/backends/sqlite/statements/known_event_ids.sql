-- Which of the given event_ids are taken, and by which id. Relies on the primary key of event_ids.
SELECT event_id, id FROM event_ids WHERE event_id IN (SELECT value FROM json_each(:event_ids))
