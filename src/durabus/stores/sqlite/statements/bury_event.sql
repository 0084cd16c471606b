-- Copies an event that ended FAILED or COMPLETED_WITH_ERRORS to the dead letters. Who had it last is given: of an event
-- that was put back, and ended by its former holder all the same, the row does not know it any more.
INSERT INTO dead_letters (
    id, bus, type, event_id, status, priority, attempts, generation, fence, max_attempts, worker_id, has_results,
    created_at, updated_at, due_at, processing_started_at, started_at, parent_id, idempotency_key, tags, metadata,
    errors, payload
)
SELECT
    id, bus, type, event_id, :status, priority, attempts, generation, fence, max_attempts, :worker_id, has_results,
    created_at, :now, due_at, :picked_at, :started_at, parent_id, idempotency_key, tags, metadata,
    :errors, payload
FROM events WHERE id = :id
