-- Makes a handler known; a known one keeps when it was created.
INSERT INTO event_handlers (bus, handler_id, pattern, created_at, last_seen_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (bus, handler_id) DO UPDATE SET pattern = excluded.pattern, last_seen_at = excluded.last_seen_at
