-- Drops single handlers' states. Relies on the primary key of event_results.
DELETE FROM {schema}.event_results AS result USING unnest($1::bigint[], $2::text[]) AS gone (id, handler_id)
WHERE result.id = gone.id AND result.handler_id = gone.handler_id
