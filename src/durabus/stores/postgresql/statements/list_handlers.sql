-- Which list of handlers each bus has, and the handlers whose time is not over; for a bus without any, a row that names
-- none. Walks the primary keys of event_buses and event_handlers.
SELECT
    known.bus, known.revision::text, handler.handler_id, handler.node, handler.pattern,
    date_part('epoch', handler.created_at), date_part('epoch', handler.last_seen_at)
FROM {schema}.event_buses AS known LEFT JOIN {schema}.event_handlers AS handler
    ON handler.bus = known.bus
    AND (handler.kept_until IS NULL OR handler.kept_until > (SELECT {schema}.the_time($2)))
WHERE known.bus = ANY ($1::text[]) ORDER BY handler.handler_id, handler.node
