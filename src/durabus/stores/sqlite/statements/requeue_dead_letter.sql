-- Puts a dead letter back into the queue: PENDING and due, counters zero, one generation on, the fence kept.
INSERT INTO events (
    id, bus, type, event_id, status, ready, priority, attempts, generation, fence, max_attempts, has_results,
    created_at, updated_at, due_at, parent_id, idempotency_key, tags, metadata, payload
)
SELECT
    id, bus, type, event_id, 'PENDING', 1, priority, 0, :generation, fence, max_attempts, :has_results,
    created_at, :now, :now, parent_id, idempotency_key, tags, metadata, payload
FROM dead_letters WHERE id = :id
