-- The handlers of a bus. Walks the primary key of event_handlers.
SELECT handler_id, pattern, created_at, last_seen_at FROM event_handlers WHERE bus = ? ORDER BY handler_id
