-- Forgets COMPLETED events of buses beyond the newest of each, the oldest ids first. Walks event_log_completed.
-- The trap: with `bus = … ORDER BY id` the planner may walk the entries of all buses by their ids. So the bus is given
-- as a stretch of the index.
SELECT bus, events FROM {schema}.trim_completed(ARRAY(
    SELECT excess.id
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS given (bus, keep, most), LATERAL (
        SELECT log.id FROM {schema}.event_log AS log
        WHERE log.completed AND (log.bus, log.id) >= (given.bus, -9223372036854775808) AND (log.bus, log.id) <= (given.bus, (
            SELECT id FROM {schema}.event_log AS newest
            WHERE newest.completed AND (newest.bus, newest.id) >= (given.bus, -9223372036854775808)
                AND (newest.bus, newest.id) <= (given.bus, 9223372036854775807)
            ORDER BY newest.bus DESC, newest.id DESC LIMIT 1 OFFSET given.keep
        ))
        ORDER BY log.bus, log.id LIMIT given.most
    ) AS excess
))
