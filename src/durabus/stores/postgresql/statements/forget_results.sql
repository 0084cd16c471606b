-- The results of forgotten events. Relies on the primary key of event_results.
DELETE FROM {schema}.event_results WHERE id = ANY ($1::bigint[])
