-- Delayed events that are due, the longest waiting first. Relies on events_delayed.
SELECT id FROM events
WHERE bus = :bus AND ready = 0 AND status = 'PENDING' AND due_at <= :now
ORDER BY due_at, id LIMIT :limit
