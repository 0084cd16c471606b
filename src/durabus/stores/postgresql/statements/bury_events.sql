-- Copies events that ended FAILED or COMPLETED_WITH_ERRORS to the dead letters. Who had them last is given: of an event
-- that was put back, and ended by its former holder all the same, the row does not know it any more.
-- Relies on events_id.
INSERT INTO {schema}.dead_letters (
    id, bus, type, event_id, status, priority, attempts, generation, fence, max_attempts, worker_id, created_at,
    updated_at, due_at, processing_started_at, started_at, parent_id, idempotency_key, tags, metadata, errors, payload
)
SELECT
    event.id, bus, type, event_id, given.status, priority, attempts, generation, fence, max_attempts,
    given.worker_id, created_at, to_timestamp(given.updated), due_at, to_timestamp(given.picked),
    to_timestamp(given.started), parent_id, idempotency_key,
    tags, metadata, given.errors, payload
FROM unnest(
    $1::bigint[], $2::text[], $3::double precision[], $4::text[], $5::text[], $6::double precision[],
    $7::double precision[]
) AS given (id, status, updated, errors, worker_id, picked, started)
JOIN {schema}.events AS event ON event.id = given.id AND event.id = ANY ($1::bigint[])
