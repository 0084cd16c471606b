-- Forgets handlers of nodes. Relies on the primary key of event_handlers.
DELETE FROM {schema}.event_handlers AS handler USING unnest($2::text[], $3::text[]) AS gone (handler_id, node)
WHERE handler.bus = $1 AND handler.handler_id = gone.handler_id AND handler.node = gone.node
