-- The last entry between two positions. Relies on the primary key of event_log.
SELECT max(position) FROM event_log WHERE position > :after AND position <= :until
