-- A lock as it stands. Relies on the primary key of locks.
SELECT key, fence, worker_id, token, date_part('epoch', expires_at) FROM {schema}.locks WHERE key = $1
