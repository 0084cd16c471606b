-- Frees the lock that came with claims, unless somebody took it since or its token holds another event.
-- The row goes: fences are counted for all locks together, so nothing is forgotten with it. Relies on events_token.
DELETE FROM locks WHERE key = :key AND token = :token AND NOT EXISTS (
    SELECT 1 FROM events WHERE token = :token AND status = 'PROCESSING' AND lock_key = :key AND id <> :but
)
