-- Held, unexpired locks by key. Walks the primary key of locks.
SELECT key, fence, worker_id, token, date_part('epoch', expires_at) FROM {schema}.locks
WHERE key > $1 AND token IS NOT NULL AND expires_at > {schema}.the_time($2) ORDER BY key LIMIT $3
