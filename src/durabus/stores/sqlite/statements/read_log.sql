-- Entries in commit order: positions are given under the write lock, so a later commit has larger ones.
-- Walks the primary key of event_log.
SELECT {entry} FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT :limit
