-- Held, unexpired locks by key. Walks the primary key of locks.
SELECT key, fence, worker_id, token, expires_at FROM locks
WHERE key > :after AND token IS NOT NULL AND expires_at > :now ORDER BY key LIMIT :limit
