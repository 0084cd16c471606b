-- Dead letters: events that ended FAILED or COMPLETED_WITH_ERRORS.

-- name: insert_dead_letters
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

-- name: list_dead_letters
-- Dead letters, newest first. Walks dead_letters_created backwards.
SELECT {dead_letter} FROM {schema}.dead_letters ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2

-- name: list_dead_letters_of_bus
-- Dead letters of a bus, newest first. Walks dead_letters_bus backwards.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE bus = $3
ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2

-- name: lock_dead_letters
-- As get_dead_letters, locked in one order: nobody requeues or purges them meanwhile.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE

-- name: requeue_dead_letters
-- Puts dead letters back into the queue: PENDING and due, counters zero, one generation on, the fence kept.
INSERT INTO {schema}.events (
    id, bus, type, event_id, status, lane, priority, attempts, generation, fence, max_attempts, has_results,
    created_at, updated_at, due_at, parent_id, idempotency_key, tags, metadata, payload
)
SELECT
    id, bus, type, event_id, 'PENDING', 2, priority, 0, generation + 1, fence, max_attempts, true,
    created_at, to_timestamp($2), to_timestamp($2), parent_id, idempotency_key, tags, metadata, payload
FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[])

-- name: purge_dead_letters
-- Deletes dead letters created until an instant, oldest first. Walks dead_letters_created or dead_letters_bus.
DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.dead_letters
    WHERE created_at <= to_timestamp($1) AND ($3::text IS NULL OR bus = $3)
    ORDER BY created_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
)) RETURNING id, event_id::text, bus, idempotency_key, status

-- name: purge_dead_letters_by_id
-- Deletes those of some events that are dead letters. Relies on the primary key of dead_letters.
-- Locked in order of id, as lock_dead_letters.sql does, so that two who purge or requeue cannot wait for each other.
DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
)) RETURNING id, event_id::text, bus, idempotency_key, status

-- name: forget_dead_letters
-- Dead letters that were removed or requeued. Relies on the primary key of dead_letters.
DELETE FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) RETURNING id
