-- The transaction that keeps committed entries from readers, if the oldest of them has waited for so many seconds: the
-- one that the horizon of read_log.sql waits for. Relies on published_position and event_log_position.
-- When another user's transaction began is seen only by members of pg_monitor; then it is taken to be as old as the entry.
SELECT holder.pid, holder.application, coalesce(holder.age, held.waiting) AS age, held.waiting
FROM (
    SELECT date_part('epoch', {schema}.the_time($1) - min(at)) AS waiting FROM (
        (SELECT at FROM {schema}.published
         WHERE tx >= pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx, position LIMIT 1)
        UNION ALL
        (SELECT at FROM {schema}.event_log
         WHERE tx >= pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx, position LIMIT 1)
    ) AS entry
) AS held, (
    SELECT pid, coalesce(nullif(application_name, ''), backend_type, 'no application name') AS application,
        date_part('epoch', clock_timestamp() - xact_start) AS age
    FROM pg_stat_activity WHERE backend_xid = pg_snapshot_xmin(pg_current_snapshot())::xid
    UNION ALL
    SELECT NULL, gid, date_part('epoch', clock_timestamp() - prepared)
    FROM pg_prepared_xacts WHERE transaction = pg_snapshot_xmin(pg_current_snapshot())::xid
) AS holder
WHERE held.waiting >= $2
LIMIT 1
