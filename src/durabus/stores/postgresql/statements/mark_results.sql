-- The events have rows in event_results from now on: settling must look at them.
UPDATE {schema}.events SET has_results = true WHERE id = ANY ($1::bigint[]) AND NOT has_results
