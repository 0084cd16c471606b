-- COMPLETED events of a bus that ended long enough ago, the oldest ids first. Relies on event_log_completed alone.
SELECT id FROM event_log
WHERE bus = :bus AND completed = 1 AND at <= :until
ORDER BY id LIMIT :limit
