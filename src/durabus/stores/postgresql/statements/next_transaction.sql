-- A number that no transaction has yet.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text
