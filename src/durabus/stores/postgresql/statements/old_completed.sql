-- COMPLETED events of a bus that ended long enough ago, the oldest ids first. Walks event_log_completed.
SELECT id FROM {schema}.event_log
WHERE bus = $1 AND completed AND at <= {schema}.the_time($2) - make_interval(secs => $3)
ORDER BY id LIMIT $4
