-- COMPLETED events whose last entry lies at or before a position and an instant, oldest first: nothing follows a
-- COMPLETED entry. Walks event_log_position.
SELECT id FROM {schema}.event_log
WHERE (tx, position) <= ($1::text::xid8, $2::bigint) AND completed
    AND at <= {schema}.the_time($3) - make_interval(secs => $4)
ORDER BY tx, position LIMIT $5
