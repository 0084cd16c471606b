-- Forgets a handler of a node. Relies on the primary key of event_handlers.
DELETE FROM event_handlers WHERE bus = ? AND handler_id = ? AND node = ?
