-- The handlers of a bus, those included whose time is over. Walks the primary key of event_handlers.
SELECT
    handler_id, node, pattern, date_part('epoch', created_at), date_part('epoch', last_seen_at),
    date_part('epoch', kept_until)
FROM {schema}.event_handlers WHERE bus = $1 ORDER BY handler_id, node
