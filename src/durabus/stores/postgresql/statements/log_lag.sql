-- How many readable entries lie between two positions. Counts in published_position and event_log_position.
SELECT
    (SELECT count(*) FROM {schema}.published
     WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot()))
    + (SELECT count(*) FROM {schema}.event_log
     WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot()))
