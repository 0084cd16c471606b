-- The audit trail of one event. Relies on published_event and event_log_event.
SELECT {entry} FROM (
    SELECT {published_columns} FROM {schema}.published WHERE event_id = $2::text::uuid AND known
    UNION ALL
    SELECT {log_columns} FROM {schema}.event_log WHERE id = $1
) AS log ORDER BY tx, position
