-- The newest readable entry. Relies on published_position and event_log_position.
SELECT to_hex(tx::text::bigint) || '-' || to_hex(position) FROM (
    (SELECT tx, position FROM {schema}.published
     WHERE tx < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx DESC, position DESC LIMIT 1)
    UNION ALL
    (SELECT tx, position FROM {schema}.event_log
     WHERE tx < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx DESC, position DESC LIMIT 1)
) AS newest ORDER BY tx DESC, position DESC LIMIT 1
