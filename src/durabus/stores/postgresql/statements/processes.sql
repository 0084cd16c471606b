-- Processes: which of them live, and what belongs to a process, by the beginning of its tokens. 'g' comes after every
-- hexadecimal digit.

-- name: show_presence
-- Notes a process that holds its lock.
INSERT INTO {schema}.processes AS known (incarnation, shown_at) VALUES ($1, clock_timestamp())
ON CONFLICT (incarnation) DO UPDATE SET shown_at = excluded.shown_at

-- name: withdraw_presence
-- Forgets a process: what it still holds is free when its leases are over.
DELETE FROM {schema}.processes WHERE incarnation = $1

-- name: look_at_processes
-- Returns for each process: whether its lock is free, the seconds since it was noted, and those since the server began.
-- The look holds a free lock until the statement ends.
SELECT
    incarnation, pg_try_advisory_xact_lock(hashtextextended(incarnation, 4)),
    date_part('epoch', clock_timestamp() - shown_at),
    date_part('epoch', clock_timestamp() - pg_postmaster_start_time())
FROM {schema}.processes ORDER BY shown_at LIMIT $1

-- name: try_lock_of_process
-- Takes the lock of a process until the transaction ends, and returns whether it was free: then the process has ended.
SELECT pg_try_advisory_xact_lock(hashtextextended($1, 4))

-- name: events_of_process
-- Returns and locks events that a process holds. Relies on events_token.
SELECT id FROM {schema}.events
WHERE token >= $1::text AND token < $1::text || 'g' AND status = 'PROCESSING'
ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: end_handler_claims_of_process
-- Ends the leases of handlers that a process holds on live events. Relies on event_results_token.
UPDATE {schema}.event_results AS result SET lease_expires_at = to_timestamp($2)
WHERE token >= $1::text AND token < $1::text || 'g' AND lease_expires_at > to_timestamp($2)
    AND EXISTS (SELECT 1 FROM {schema}.events WHERE events.id = result.id)

-- name: end_locks_of_process
-- Ends the leases of locks that a process holds. Reads all locks.
UPDATE {schema}.locks SET expires_at = to_timestamp($2)
WHERE token >= $1::text AND token < $1::text || 'g' AND expires_at > to_timestamp($2)

-- name: forget_process
-- Forgets a process that holds no event. Relies on events_token.
DELETE FROM {schema}.processes WHERE incarnation = $1 AND NOT EXISTS (
    SELECT 1 FROM {schema}.events WHERE token >= $1::text AND token < $1::text || 'g'
)
