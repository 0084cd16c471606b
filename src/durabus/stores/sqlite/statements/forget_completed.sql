-- The entry stays in the log but is no event any more. Relies on event_log_event.
UPDATE event_log SET completed = NULL WHERE id = ? AND action <> 'PUBLISHED' AND completed = 1
