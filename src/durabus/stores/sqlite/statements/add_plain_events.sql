-- As add_events.sql for the common event: due at once, priority 0, nothing optional. Eight values to bind, not fifteen.
INSERT INTO events (
    id, event_id, bus, type, payload, due_at, created_at, updated_at,
    ready, status, priority, attempts, generation, fence, has_results
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, 'PENDING', 0, 0, 0, 0, 0)
