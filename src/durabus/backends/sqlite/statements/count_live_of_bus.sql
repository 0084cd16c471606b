-- As count_live.sql, for one bus.
SELECT
    (SELECT count(*) FROM events WHERE bus = :bus AND ready = 1)
    + (SELECT count(*) FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING')
    + (SELECT count(*) FROM events WHERE bus = :bus AND ready = 2),
    (SELECT count(*) FROM events WHERE bus = :bus AND status = 'PROCESSING')
