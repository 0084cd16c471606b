-- The entries of unknown events up to a position and an instant. Walks the primary key of event_log.
DELETE FROM event_log
WHERE position <= :until AND at <= :before AND id IN (SELECT value FROM json_each(:ids))
