-- The log entries of trimmed events. Relies on event_log_event.
DELETE FROM event_log WHERE id IN (SELECT value FROM json_each(:ids))
