-- Drops one handler's state. Relies on the unique index of event_results.
DELETE FROM event_results WHERE id = ? AND handler_id = ?
