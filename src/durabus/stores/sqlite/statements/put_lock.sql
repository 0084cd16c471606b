-- Writes a lock that the kernel granted, renewed or freed. Relies on the primary key of locks.
INSERT INTO locks (key, fence, worker_id, token, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    fence = excluded.fence, worker_id = excluded.worker_id, token = excluded.token, expires_at = excluded.expires_at
