-- How many COMPLETED events are remembered. Counts in event_log_completed alone.
SELECT count(*) FROM event_log WHERE completed = 1
