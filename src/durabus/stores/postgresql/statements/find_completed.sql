-- COMPLETED events below an id, as find_live.sql. Walks event_log_completed for one bus, event_log_event for all, or
-- uses event_log_parent.
SELECT {completed} FROM {schema}.event_log WHERE completed AND id < $1
