-- The events that a token holds together with a lock. Relies on events_token.
SELECT id FROM events WHERE token = ? AND lock_key = ? AND status = 'PROCESSING' ORDER BY id
