-- A COMPLETED event, served from its last log entry. Relies on event_log_event.
SELECT {completed} FROM event_log WHERE id = ? AND action <> 'PUBLISHED' AND completed = 1
