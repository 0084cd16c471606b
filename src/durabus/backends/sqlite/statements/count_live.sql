-- How many events are PENDING and PROCESSING. Counts in events_ready, events_delayed, events_aside
-- and events_leased alone.
SELECT
    (SELECT count(*) FROM events WHERE ready = 1)
    + (SELECT count(*) FROM events WHERE ready = 0 AND status = 'PENDING')
    + (SELECT count(*) FROM events WHERE ready = 2),
    (SELECT count(*) FROM events WHERE status = 'PROCESSING')
