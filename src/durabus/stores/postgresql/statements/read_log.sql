-- Readable entries between two positions, in order: those of transactions below the oldest that still runs.
-- Walks published_position and event_log_position side by side.
SELECT {entry} FROM (
    SELECT {published_columns} FROM {schema}.published
    WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot())
    UNION ALL
    SELECT {log_columns} FROM {schema}.event_log
    WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot())
) AS log ORDER BY tx, position LIMIT $5
