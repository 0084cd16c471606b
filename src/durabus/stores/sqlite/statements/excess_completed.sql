-- COMPLETED events of a bus beyond the :keep newest, the oldest ids first. Relies on event_log_completed alone.
SELECT id FROM event_log
WHERE bus = :bus AND completed = 1 AND id <= (
    SELECT id FROM event_log WHERE bus = :bus AND completed = 1 ORDER BY id DESC LIMIT 1 OFFSET :keep
)
ORDER BY id LIMIT :limit
