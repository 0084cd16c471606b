-- As count_completed.sql, for one bus.
SELECT count(*) FROM event_log WHERE completed = 1 AND bus = :bus
