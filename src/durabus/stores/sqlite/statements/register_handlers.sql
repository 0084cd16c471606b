-- Makes a handler of a node known; a known one keeps when it was created.
INSERT INTO event_handlers (bus, handler_id, node, pattern, created_at, last_seen_at, kept_until)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (bus, handler_id, node) DO UPDATE
SET pattern = excluded.pattern, last_seen_at = excluded.last_seen_at, kept_until = excluded.kept_until
