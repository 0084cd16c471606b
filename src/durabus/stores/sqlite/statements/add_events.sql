-- Stores one new event; run for each of a batch, with ids in the order of the batch.
-- What is absent comes as '' or 0 and is stored as NULL: binding None costs the driver more than the nullif.
INSERT INTO events (
    id, event_id, bus, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key,
    ready, due_at, created_at, updated_at, status, attempts, generation, fence, has_results
) VALUES (
    ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, 0), nullif(?, ''), nullif(?, ''),
    ?, ?, ?, ?, 'PENDING', 0, 0, 0, 0
)
