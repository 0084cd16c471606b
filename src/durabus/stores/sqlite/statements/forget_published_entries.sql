-- The PUBLISHED entries of trimmed events. Relies on event_log_published.
DELETE FROM event_log WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))
