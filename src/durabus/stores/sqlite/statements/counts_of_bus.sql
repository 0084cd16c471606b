-- As counts.sql, for one bus. Relies on the primary key of event_counts.
SELECT
    coalesce(sum(live), 0), (SELECT count(*) FROM events WHERE bus = :bus AND status = 'PROCESSING'),
    coalesce(sum(completed), 0), coalesce(sum(completed_with_errors), 0), coalesce(sum(failed), 0)
FROM event_counts WHERE bus = :bus
