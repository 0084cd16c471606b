-- The id behind an event_id. Relies on the primary key of event_ids.
SELECT id FROM event_ids WHERE event_id = ?
