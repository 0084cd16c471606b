-- Forgets some locks that nobody has held for long. Relies on locks_expires.
DELETE FROM {schema}.locks WHERE key = ANY (ARRAY(
    SELECT key FROM {schema}.locks WHERE expires_at < to_timestamp($1) ORDER BY expires_at LIMIT 10
    FOR UPDATE SKIP LOCKED
))
