-- COMPLETED events below an id, as find_live.sql. Walks event_log_completed for one bus, event_log_event for all
-- (the plus keeps the planner from sorting every completed event), or uses event_log_parent.
SELECT {completed} FROM event_log WHERE id < :before_id AND action <> 'PUBLISHED'
