-- Copies events that ended FAILED or COMPLETED_WITH_ERRORS to the dead letters.
INSERT INTO {schema}.dead_letters (
    id, bus, type, event_id, status, priority, attempts, generation, fence, max_attempts, worker_id, created_at,
    updated_at, due_at, processing_started_at, started_at, parent_id, idempotency_key, tags, metadata, errors, payload
)
SELECT
    event.id, bus, type, event_id, given.status, priority, attempts, generation, fence, max_attempts, worker_id,
    created_at, to_timestamp(given.updated), due_at, processing_started_at, started_at, parent_id, idempotency_key,
    tags, metadata, given.errors, payload
FROM unnest($1::bigint[], $2::text[], $3::double precision[], $4::text[]) AS given (id, status, updated, errors)
JOIN {schema}.events AS event ON event.id = given.id
