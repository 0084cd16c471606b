-- Named locks: leased and fenced.

-- name: get_lock
-- A lock as it stands. Relies on the primary key of locks.
SELECT key, fence, worker_id, token, expires_at FROM locks WHERE key = ?

-- name: list_locks
-- Held, unexpired locks by key. Walks the primary key of locks.
SELECT key, fence, worker_id, token, expires_at FROM locks
WHERE key > :after AND token IS NOT NULL AND expires_at > :now ORDER BY key LIMIT :limit

-- name: put_lock
-- Writes a lock that the kernel granted, renewed or freed. Relies on the primary key of locks.
INSERT INTO locks (key, fence, worker_id, token, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    fence = excluded.fence, worker_id = excluded.worker_id, token = excluded.token, expires_at = excluded.expires_at

-- name: lock_of_claim
-- The lock that came with a claim, and whose claim it is. Relies on the primary key of events.
SELECT lock_key, bus FROM events WHERE id = ? AND lock_key IS NOT NULL

-- name: locked_events
-- The events that a token holds together with a lock. Relies on events_token.
SELECT id FROM events WHERE token = ? AND lock_key = ? AND status = 'PROCESSING' ORDER BY id

-- name: take_lock_fence
-- The next fence for a lock, above every one that any lock ever had, so that forgotten locks never repeat one.
UPDATE counters SET value = value + 1 WHERE name = 'lock_fence' RETURNING value

-- name: free_claimed_lock
-- Frees the lock that came with the claim on a handler, unless somebody took it since.
-- The row goes: fences are counted for all locks together, so nothing is forgotten with it.
DELETE FROM locks WHERE key = ? AND token = ?

-- name: free_event_lock
-- Frees the lock that came with claims, unless somebody took it since or its token holds another event.
-- The row goes: fences are counted for all locks together, so nothing is forgotten with it. Relies on events_token.
DELETE FROM locks WHERE key = :key AND token = :token AND NOT EXISTS (
    SELECT 1 FROM events WHERE token = :token AND status = 'PROCESSING' AND lock_key = :key AND id <> :but
)

-- name: renew_claimed_lock
-- Extends the lock that came with the claim on a handler, unless somebody took it since.
UPDATE locks SET expires_at = ? WHERE key = ? AND token = ?

-- name: renew_event_lock
-- Extends the lock that came with claims, unless somebody took it since, or another of its claims lasts longer.
UPDATE locks SET expires_at = max(expires_at, ?) WHERE key = ? AND token = ?

-- name: sweep_locks
-- Forgets some locks that nobody has held for long. Relies on locks_expires.
DELETE FROM locks WHERE key IN (SELECT key FROM locks WHERE expires_at < :before ORDER BY expires_at LIMIT 10)
