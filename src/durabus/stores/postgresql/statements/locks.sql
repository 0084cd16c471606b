-- Named locks, with leases and fences.

-- name: get_lock
-- Returns a lock. Relies on the primary key of locks.
SELECT key, fence, worker_id, token, date_part('epoch', expires_at) FROM {schema}.locks WHERE key = $1

-- name: get_locks
-- Returns the locks of these keys. Relies on the primary key of locks.
SELECT key, fence, worker_id, token, date_part('epoch', expires_at) FROM {schema}.locks WHERE key = ANY ($1::text[])

-- name: put_locks
-- Writes locks that the lifecycle granted, each with a new fence. Relies on the primary key of locks.
INSERT INTO {schema}.locks (key, fence, worker_id, token, expires_at)
SELECT key, nextval('{schema}.lock_fences'), worker_id, token, to_timestamp(expires)
FROM unnest($1::text[], $2::text[], $3::text[], $4::double precision[]) AS given (key, worker_id, token, expires)
ON CONFLICT (key) DO UPDATE SET
    fence = excluded.fence, worker_id = excluded.worker_id, token = excluded.token, expires_at = excluded.expires_at

-- name: list_locks
-- Returns held, unexpired locks by key. Walks the primary key of locks.
SELECT key, fence, worker_id, token, date_part('epoch', expires_at) FROM {schema}.locks
WHERE key > $1 AND token IS NOT NULL AND expires_at > {schema}.the_time($2) ORDER BY key LIMIT $3

-- name: put_lock
-- Writes a lock that the lifecycle granted, renewed or freed. Relies on the primary key of locks.
INSERT INTO {schema}.locks (key, fence, worker_id, token, expires_at) VALUES ($1, $2, $3, $4, to_timestamp($5))
ON CONFLICT (key) DO UPDATE SET
    fence = excluded.fence, worker_id = excluded.worker_id, token = excluded.token, expires_at = excluded.expires_at

-- name: hold_lock
-- Returns and locks the holder of a lock: no other transaction takes or frees it until this one ends.
SELECT fence, token FROM {schema}.locks WHERE key = $1 FOR UPDATE

-- name: locked_events
-- Returns the events that a token holds together with a lock. Relies on events_token.
SELECT id FROM {schema}.events WHERE token = $1 AND lock_key = $2 AND status = 'PROCESSING' ORDER BY id

-- name: take_lock_fence
-- Returns the next fence for a lock, above every fence that any lock ever had, so that a deleted lock never repeats
-- one.
SELECT nextval('{schema}.lock_fences')

-- name: free_claimed_locks
-- Frees the locks of claims on handlers, unless another claim took them since. One sequence gives the fences of all
-- locks, so the rows can be deleted.
DELETE FROM {schema}.locks AS lock USING unnest($1::text[], $2::text[]) AS given (key, token)
WHERE lock.key = given.key AND lock.token = given.token

-- name: free_event_locks
-- Frees the locks of claims that this transaction has ended: see the function in migrations/0003_claims.sql.
SELECT {schema}.free_event_locks($1, $2)

-- name: renew_claimed_locks
-- Extends the locks of claims on handlers, unless another claim took them since.
UPDATE {schema}.locks AS lock SET expires_at = to_timestamp($3)
FROM unnest($1::text[], $2::text[]) AS given (key, token)
WHERE lock.key = given.key AND lock.token = given.token

-- name: renew_event_locks
-- Extends the locks of claims, unless another claim took them since, or another event of their token has a longer
-- lease.
UPDATE {schema}.locks AS lock SET expires_at = greatest(lock.expires_at, to_timestamp($3))
FROM unnest($1::text[], $2::text[]) AS given (key, token)
WHERE lock.key = given.key AND lock.token = given.token

-- name: sweep_locks
-- Deletes some locks that have long been free. Relies on locks_expires.
DELETE FROM {schema}.locks WHERE key = ANY (ARRAY(
    SELECT key FROM {schema}.locks WHERE expires_at < to_timestamp($1) ORDER BY expires_at LIMIT 10
    FOR UPDATE SKIP LOCKED
))
