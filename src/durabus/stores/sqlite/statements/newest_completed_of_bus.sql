-- The newest COMPLETED event of a bus below an id. Relies on event_log_completed.
SELECT id FROM event_log WHERE bus = :bus AND id < :before_id AND completed = 1 ORDER BY id DESC LIMIT 1
