-- The newest entry. Relies on the primary key of event_log.
SELECT max(position) FROM event_log
