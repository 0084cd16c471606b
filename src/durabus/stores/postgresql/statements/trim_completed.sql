-- Forgets COMPLETED events: see the function.
SELECT coalesce(sum(events), 0)::bigint, coalesce(sum(entries), 0)::bigint FROM {schema}.trim_completed($1)
