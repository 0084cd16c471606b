-- The events that a token holds, in queue order. Relies on events_token.
SELECT {event} FROM events WHERE token = :token AND status = 'PROCESSING' ORDER BY priority DESC, id
