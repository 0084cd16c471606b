-- The handlers of events in the order they first appeared. Relies on the primary key of event_results.
SELECT id, {result} FROM {schema}.event_results WHERE id = ANY ($1::bigint[]) ORDER BY result_id
