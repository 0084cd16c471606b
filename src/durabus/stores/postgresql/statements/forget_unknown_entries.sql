-- The entries of unknown events up to a position and an instant. Relies on event_log_event and published_position.
WITH published AS (
    DELETE FROM {schema}.published
    WHERE (tx, position) <= ($1::text::xid8, $2::bigint) AND at <= {schema}.the_time($3) - make_interval(secs => $4)
        AND NOT known AND id = ANY ($5::bigint[])
    RETURNING 1
), others AS (
    DELETE FROM {schema}.event_log
    WHERE (tx, position) <= ($1::text::xid8, $2::bigint) AND at <= {schema}.the_time($3) - make_interval(secs => $4)
        AND id = ANY ($5::bigint[])
    RETURNING 1
)
SELECT 1 FROM published UNION ALL SELECT 1 FROM others
