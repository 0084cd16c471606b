-- As add_events.sql for the common event: due at once, priority 0, nothing optional. Six values to bind, not fourteen.
INSERT INTO events (
    id, event_id, bus, type, payload, due_at, created_at, updated_at,
    ready, status, priority, attempts, generation, fence, has_results
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?6, 1, 'PENDING', 0, 0, 0, 0, 0)
