-- COMPLETED events whose last entry lies at or before a position and an instant, oldest first: nothing follows a
-- COMPLETED entry. Walks the primary key of event_log.
SELECT id FROM event_log
WHERE position <= :until AND completed = 1 AND at <= :before
ORDER BY position LIMIT :limit
