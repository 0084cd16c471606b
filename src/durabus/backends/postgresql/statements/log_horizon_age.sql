-- For how long the log has been waiting for the oldest transaction that may still write to it; 0 if for none.
-- Other users' sessions are seen only by members of pg_monitor.
SELECT coalesce(max(date_part('epoch', clock_timestamp() - began)), 0) FROM (
    SELECT xact_start AS began FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts
) AS running
