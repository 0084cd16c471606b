-- As count_dead.sql, for one bus.
SELECT status, count(*) FROM dead_letters WHERE bus = :bus GROUP BY status
