-- The audit trail of one event. Relies on event_log_event.
SELECT {entry} FROM event_log WHERE id = ? ORDER BY position
