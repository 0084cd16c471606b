-- The handlers of a bus, those included whose time is over. Walks the primary key of event_handlers.
SELECT handler_id, node, pattern, created_at, last_seen_at, kept_until FROM event_handlers
WHERE bus = ? ORDER BY handler_id, node
