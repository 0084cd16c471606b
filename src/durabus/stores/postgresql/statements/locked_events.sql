-- The events that a token holds together with a lock. Relies on events_token.
SELECT id FROM {schema}.events WHERE token = $1 AND lock_key = $2 AND status = 'PROCESSING' ORDER BY id
