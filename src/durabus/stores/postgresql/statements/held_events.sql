-- The events that a token holds, in queue order. Relies on events_token.
SELECT {event} FROM {schema}.events WHERE token = $1 AND status = 'PROCESSING' ORDER BY priority DESC, id
