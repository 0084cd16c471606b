-- Dead letters: events that ended FAILED or COMPLETED_WITH_ERRORS.

-- name: insert_dead_letters
-- Copies events that ended FAILED or COMPLETED_WITH_ERRORS to the dead letters. The caller passes the last holder: the
-- row of an event that is PENDING again lacks it, but the former holder may still end it. A requeue keeps due_at if it
-- lies ahead.
-- Relies on events_id.
INSERT INTO {schema}.dead_letters (
    id, bus, type, event_id, status, priority, attempts, generation, fence, max_attempts, worker_id, created_at,
    updated_at, due_at, processing_started_at, started_at, parent_id, idempotency_key, tags, metadata, errors, payload
)
SELECT
    event.id, bus, type, event_id, given.status, priority, attempts, generation, fence, max_attempts,
    given.worker_id, created_at, to_timestamp(given.updated), to_timestamp(given.due), to_timestamp(given.picked),
    to_timestamp(given.started), parent_id, idempotency_key,
    tags, metadata, given.errors, payload
FROM unnest(
    $1::bigint[], $2::text[], $3::double precision[], $4::double precision[], $5::text[], $6::text[],
    $7::double precision[], $8::double precision[]
) AS given (id, status, updated, due, errors, worker_id, picked, started)
JOIN {schema}.events AS event ON event.id = given.id AND event.id = ANY ($1::bigint[])

-- name: list_dead_letters
-- Returns dead letters, newest first. Walks dead_letters_created backwards.
SELECT {dead_letter} FROM {schema}.dead_letters ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2

-- name: list_dead_letters_of_bus
-- Returns dead letters of a bus, newest first. Walks dead_letters_bus backwards.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE bus = $3
ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2

-- name: lock_dead_letters
-- Returns dead letters and locks them in order of id, so that no other transaction requeues or purges them.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE

-- name: requeue_dead_letters
-- Puts dead letters back into the queue: PENDING, counters zero, the next generation, the same fence. An event that is
-- not due goes to queue_part 0.
INSERT INTO {schema}.events (
    id, bus, type, event_id, status, queue_part, priority, attempts, generation, fence, max_attempts, has_results,
    created_at, updated_at, due_at, parent_id, idempotency_key, tags, metadata, payload
)
SELECT
    id, bus, type, event_id, 'PENDING', CASE WHEN due_at > to_timestamp($2) THEN 0 ELSE 2 END, priority, 0,
    generation + 1, fence, max_attempts, true, created_at, to_timestamp($2), greatest(due_at, to_timestamp($2)), parent_id, idempotency_key, tags, metadata, payload
FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[])

-- name: purge_dead_letters
-- Deletes dead letters created until an instant, oldest first. Walks dead_letters_created or dead_letters_bus.
DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.dead_letters
    WHERE created_at <= to_timestamp($1) AND ($3::text IS NULL OR bus = $3)
    ORDER BY created_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
)) RETURNING id, event_id::text, bus, idempotency_key, status

-- name: purge_dead_letters_by_id
-- Deletes given events that are dead letters. Relies on the primary key of dead_letters.
-- Locks them in order of id, as lock_dead_letters does, so that two transactions cannot deadlock.
DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
)) RETURNING id, event_id::text, bus, idempotency_key, status

-- name: forget_dead_letters
-- Deletes dead letters that were removed or requeued. Relies on the primary key of dead_letters.
DELETE FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) RETURNING id
