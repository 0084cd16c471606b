-- All other log entries of trimmed events. Relies on event_log_event.
DELETE FROM event_log WHERE action <> 'PUBLISHED' AND id IN (SELECT value FROM json_each(:ids))
