-- Registrations of buses and handlers.

-- name: lock_bus
-- Makes transactions that change the handlers of a bus wait for each other.
SELECT 1 FROM {schema}.event_buses WHERE bus = $1 FOR UPDATE

-- name: active_buses
-- Returns buses that have live events, by name. Jumps from bus to bus in events_fresh, events_returned, events_delayed
-- and events_leased, so its cost depends neither on the backlog of a bus nor on the number of idle buses.
WITH RECURSIVE active (bus, number) AS (
    SELECT $1::text COLLATE "C", 0
    UNION ALL
    SELECT least(
        (SELECT min(bus) FROM {schema}.events WHERE queue_part = 1 AND bus > active.bus),
        (SELECT min(bus) FROM {schema}.events WHERE queue_part = 2 AND bus > active.bus),
        (SELECT min(bus) FROM {schema}.events WHERE queue_part = 0 AND status = 'PENDING' AND bus > active.bus),
        (SELECT min(bus) FROM {schema}.events WHERE status = 'PROCESSING' AND bus > active.bus)
    ), number + 1
    FROM active WHERE bus IS NOT NULL AND number < $2
)
SELECT bus FROM active WHERE bus IS NOT NULL AND number > 0

-- name: archive_buses
-- Deletes buses that stopped long enough ago and have no live events, and their handlers.
-- Walks event_buses_stopped.
WITH gone AS (
    DELETE FROM {schema}.event_buses WHERE bus = ANY (ARRAY(
        SELECT stopped.bus FROM {schema}.event_buses AS stopped
        WHERE stopped_at <= {schema}.the_time($1) - make_interval(secs => $2)
          AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND queue_part = 1)
          AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND queue_part = 2)
          AND NOT EXISTS (
              SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND queue_part = 0 AND status = 'PENDING'
          )
          AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND status = 'PROCESSING')
        ORDER BY stopped_at, stopped.bus LIMIT $3 FOR UPDATE SKIP LOCKED
    )) RETURNING bus
), handlers AS (
    DELETE FROM {schema}.event_handlers USING gone WHERE event_handlers.bus = gone.bus
)
SELECT bus FROM gone

-- name: list_buses
-- Returns registered buses by name. Walks the primary key of event_buses.
SELECT bus, date_part('epoch', created_at), date_part('epoch', last_seen_at), date_part('epoch', stopped_at)
FROM {schema}.event_buses WHERE bus > $1 ORDER BY bus LIMIT $2

-- name: stop_buses
-- Marks buses as stopped. Relies on the primary key of event_buses.
UPDATE {schema}.event_buses SET stopped_at = {schema}.the_time($2) WHERE bus = ANY ($1::text[])

-- name: register_handlers
-- Registers buses and the handlers of nodes, one after the other: see the function in migrations/0002_publishing.sql.
SELECT {schema}.register_handlers($1, bus, node, handler_ids, patterns, kept_for)
FROM json_to_recordset($2::json)
    AS given (bus text, node text, handler_ids text[], patterns text[], kept_for double precision)

-- name: list_handlers
-- Returns the revision of the list of handlers of each bus, and its unexpired handlers; for a bus without any, one row
-- without a handler. Walks the primary keys of event_buses and event_handlers.
SELECT
    known.bus, known.revision::text, handler.handler_id, handler.node, handler.pattern,
    date_part('epoch', handler.created_at), date_part('epoch', handler.last_seen_at)
FROM {schema}.event_buses AS known LEFT JOIN {schema}.event_handlers AS handler
    ON handler.bus = known.bus
    AND (handler.kept_until IS NULL OR handler.kept_until > (SELECT {schema}.the_time($2)))
WHERE known.bus = ANY ($1::text[]) ORDER BY handler.handler_id, handler.node

-- name: revise_handlers
-- Gives the list of handlers of a bus a revision that no list had before.
UPDATE {schema}.event_buses SET revision = nextval('{schema}.handler_revisions') WHERE bus = $1

-- name: unregister_handler
-- Deletes a handler of all nodes; returns for each whether it was unexpired. Walks the primary key of
-- event_handlers.
DELETE FROM {schema}.event_handlers WHERE bus = $1 AND handler_id = $2
RETURNING kept_until IS NULL OR kept_until > {schema}.the_time($3)
