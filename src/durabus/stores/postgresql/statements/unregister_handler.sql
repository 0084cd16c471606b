-- Forgets a handler of all nodes; answers for each whether its time was not over. Walks the primary key of
-- event_handlers.
DELETE FROM {schema}.event_handlers WHERE bus = $1 AND handler_id = $2
RETURNING kept_until IS NULL OR kept_until > {schema}.the_time($3)
