-- How many dead letters there are, of one bus or of all, as counts.sql.
SELECT coalesce(sum(dead), 0)::bigint FROM (
    SELECT completed_with_errors + failed AS dead FROM {schema}.event_counts WHERE $1::text IS NULL OR bus = $1
    UNION ALL
    SELECT completed_with_errors + failed FROM {schema}.event_count_notes WHERE $1::text IS NULL OR bus = $1
) AS noted
