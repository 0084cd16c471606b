-- How many events there are of each status. Adds up event_counts; what is in somebody's hands is counted in
-- events_leased, which is never long.
SELECT
    coalesce(sum(live), 0), (SELECT count(*) FROM events WHERE status = 'PROCESSING'),
    coalesce(sum(completed), 0), coalesce(sum(completed_with_errors), 0), coalesce(sum(failed), 0)
FROM event_counts
