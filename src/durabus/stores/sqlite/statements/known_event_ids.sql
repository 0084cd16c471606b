-- Which of the given event_ids are taken, and by which id. Relies on event_log_published.
SELECT event_id, id FROM event_log WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))
