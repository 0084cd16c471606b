-- Dead letters: events that ended FAILED or COMPLETED_WITH_ERRORS.

-- name: insert_dead_letter
-- Copies an event that ended FAILED or COMPLETED_WITH_ERRORS to the dead letters. The caller passes the last holder:
-- the row of an event that is PENDING again lacks it, but the former holder may still end it. A requeue keeps due_at
-- if it lies ahead.
INSERT INTO dead_letters (
    id, bus, type, event_id, status, priority, attempts, generation, fence, max_attempts, worker_id, has_results,
    created_at, updated_at, due_at, processing_started_at, started_at, parent_id, idempotency_key, tags, metadata,
    errors, payload
)
SELECT
    id, bus, type, event_id, :status, priority, attempts, generation, fence, max_attempts, :worker_id, has_results,
    created_at, :now, :due_at, :picked_at, :started_at, parent_id, idempotency_key, tags, metadata,
    :errors, payload
FROM events WHERE id = :id

-- name: list_dead_letters
-- Returns dead letters, newest first. Walks dead_letters_created backwards.
SELECT {dead_letter} FROM dead_letters ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset

-- name: list_dead_letters_of_bus
-- Returns dead letters of a bus, newest first. Walks dead_letters_bus backwards.
SELECT {dead_letter} FROM dead_letters WHERE bus = :bus
ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset

-- name: dead_letters_by_id
-- Returns which of given events are dead letters, with the columns that their deletion needs. Relies on the primary key
-- of dead_letters.
SELECT id, event_id, bus, idempotency_key FROM dead_letters
WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: requeue_dead_letter
-- Puts a dead letter back into the queue: PENDING, counters zero, the next generation, the same fence. It is ready if
-- it is due.
INSERT INTO events (
    id, bus, type, event_id, status, ready, priority, attempts, generation, fence, max_attempts, has_results,
    created_at, updated_at, due_at, parent_id, idempotency_key, tags, metadata, payload
)
SELECT
    id, bus, type, event_id, 'PENDING', :due_at <= :now, priority, 0, :generation, fence, max_attempts, :has_results,
    created_at, :now, :due_at, parent_id, idempotency_key, tags, metadata, payload
FROM dead_letters WHERE id = :id

-- name: old_dead_letters
-- Returns dead letters created until an instant, oldest first. Walks dead_letters_created.
SELECT id, event_id, bus, idempotency_key FROM dead_letters
WHERE created_at <= :until ORDER BY created_at, id LIMIT :limit

-- name: old_dead_letters_of_bus
-- Does what old_dead_letters does, for one bus. Walks dead_letters_bus.
SELECT id, event_id, bus, idempotency_key FROM dead_letters
WHERE bus = :bus AND created_at <= :until ORDER BY created_at, id LIMIT :limit

-- name: forget_dead_letters
-- Deletes dead letters that were purged, removed or requeued. Relies on the primary key of dead_letters.
DELETE FROM dead_letters WHERE id IN (SELECT value FROM json_each(:ids))
