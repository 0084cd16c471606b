-- The id behind an event_id. Relies on event_log_published.
SELECT id FROM event_log WHERE event_id = ? AND known = 1
