-- Named locks, with leases and fences.

-- name: get_lock
-- Returns a lock. Relies on the primary key of locks.
SELECT key, fence, worker_id, token, expires_at FROM locks WHERE key = ?

-- name: list_locks
-- Returns held, unexpired locks by key. Walks the primary key of locks.
SELECT key, fence, worker_id, token, expires_at FROM locks
WHERE key > :after AND token IS NOT NULL AND expires_at > :now ORDER BY key LIMIT :limit

-- name: put_lock
-- Writes a lock that the lifecycle granted, renewed or freed. Relies on the primary key of locks.
INSERT INTO locks (key, fence, worker_id, token, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    fence = excluded.fence, worker_id = excluded.worker_id, token = excluded.token, expires_at = excluded.expires_at

-- name: lock_of_claim
-- Returns the lock of a claim, and the bus of its event. Relies on the primary key of events.
SELECT lock_key, bus FROM events WHERE id = ? AND lock_key IS NOT NULL

-- name: locked_events
-- Returns the events that a token holds together with a lock. Relies on events_token.
SELECT id FROM events WHERE token = ? AND lock_key = ? AND status = 'PROCESSING' ORDER BY id

-- name: take_lock_fence
-- Returns the next fence for a lock, above every fence that any lock ever had, so that a deleted lock never repeats
-- one.
UPDATE counters SET value = value + 1 WHERE name = 'lock_fence' RETURNING value

-- name: free_claimed_lock
-- Frees the lock of a claim on a handler, unless another claim took it since. One counter gives the fences of all
-- locks, so the row can be deleted.
DELETE FROM locks WHERE key = ? AND token = ?

-- name: free_event_lock
-- Frees the lock of claims, unless another claim took it since or its token holds another event. One counter gives the
-- fences of all locks, so the row can be deleted. Relies on events_token.
DELETE FROM locks WHERE key = :key AND token = :token AND NOT EXISTS (
    SELECT 1 FROM events WHERE token = :token AND status = 'PROCESSING' AND lock_key = :key AND id <> :but
)

-- name: renew_claimed_lock
-- Extends the lock of a claim on a handler, unless another claim took it since.
UPDATE locks SET expires_at = ? WHERE key = ? AND token = ?

-- name: renew_event_lock
-- Extends the lock of claims, unless another claim took it since, or another event of its token has a longer lease.
UPDATE locks SET expires_at = max(expires_at, ?) WHERE key = ? AND token = ?

-- name: sweep_locks
-- Deletes some locks that have long been free. Relies on locks_expires.
DELETE FROM locks WHERE key IN (SELECT key FROM locks WHERE expires_at < :before ORDER BY expires_at LIMIT 10)
