-- Events by id or event_id, wherever they are in their lives, seen at one moment. Relies on events_id, the primary key
-- of dead_letters, event_log_event and published_event. A COMPLETED event is served from its last log entry.
WITH wanted AS MATERIALIZED (
    SELECT unnest($1::bigint[]) AS id
    UNION
    SELECT id FROM {schema}.published WHERE event_id = ANY ($2::text[]::uuid[]) AND known
)
SELECT {event} FROM {schema}.events WHERE id = ANY (ARRAY(SELECT id FROM wanted))
UNION ALL
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id = ANY (ARRAY(SELECT id FROM wanted))
UNION ALL
SELECT {completed} FROM {schema}.event_log WHERE id = ANY (ARRAY(SELECT id FROM wanted)) AND completed
