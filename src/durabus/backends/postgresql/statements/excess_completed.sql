-- COMPLETED events of a bus beyond the newest, the oldest ids first. Walks event_log_completed.
SELECT id FROM {schema}.event_log
WHERE bus = $1 AND completed AND id <= (
    SELECT id FROM {schema}.event_log WHERE bus = $1 AND completed ORDER BY id DESC LIMIT 1 OFFSET $2
)
ORDER BY id LIMIT $3
