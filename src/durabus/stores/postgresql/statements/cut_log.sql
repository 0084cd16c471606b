-- The ends of pieces of so many entries between two positions. Walks published_position and event_log_position.
SELECT to_hex(tx::text::bigint) || '-' || to_hex(position) FROM (
    SELECT tx, position, row_number() OVER forward AS number, lead(position) OVER forward AS following
    FROM (
        SELECT tx, position FROM {schema}.published
        WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
            AND tx < pg_snapshot_xmin(pg_current_snapshot())
        UNION ALL
        SELECT tx, position FROM {schema}.event_log
        WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
            AND tx < pg_snapshot_xmin(pg_current_snapshot())
    ) AS log WINDOW forward AS (ORDER BY tx, position)
) AS numbered WHERE number % $5 = 0 OR following IS NULL ORDER BY number LIMIT $6
