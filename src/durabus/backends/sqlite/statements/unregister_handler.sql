-- Forgets a handler.
DELETE FROM event_handlers WHERE bus = ? AND handler_id = ?
