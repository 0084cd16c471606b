-- As read_log, for readers that decode nothing. Walks the primary key of event_log.
SELECT {log_row} FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT :limit
