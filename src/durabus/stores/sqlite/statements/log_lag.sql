-- How many entries lie after a position. Walks the primary key of event_log.
SELECT count(*) FROM event_log WHERE position > ?
