-- How many events there are in each status: the sums, and what was noted since. Relies on the primary key of
-- event_counts; the notes are few.
SELECT
    coalesce(sum(pending), 0)::bigint, coalesce(sum(processing), 0)::bigint, coalesce(sum(completed), 0)::bigint,
    coalesce(sum(completed_with_errors), 0)::bigint, coalesce(sum(failed), 0)::bigint
FROM (
    SELECT pending, processing, completed, completed_with_errors, failed FROM {schema}.event_counts
    WHERE $1::text IS NULL OR bus = $1
    UNION ALL
    SELECT pending, processing, completed, completed_with_errors, failed FROM {schema}.event_count_notes
    WHERE $1::text IS NULL OR bus = $1
) AS noted
