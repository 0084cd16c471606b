-- Puts dead letters back into the queue: PENDING and due, counters zero, one generation on, the fence kept.
INSERT INTO {schema}.events (
    id, bus, type, event_id, status, lane, priority, attempts, generation, fence, max_attempts, has_results,
    created_at, updated_at, due_at, parent_id, idempotency_key, tags, metadata, payload
)
SELECT
    id, bus, type, event_id, 'PENDING', 2, priority, 0, generation + 1, fence, max_attempts, true,
    created_at, to_timestamp($2), to_timestamp($2), parent_id, idempotency_key, tags, metadata, payload
FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[])
