-- A lock as it stands. Relies on the primary key of locks.
SELECT key, fence, worker_id, token, expires_at FROM locks WHERE key = ?
