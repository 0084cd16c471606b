-- Buses and handlers.

-- name: register_bus
-- Makes a bus known; a stopped one becomes active again.
INSERT INTO event_buses (bus, created_at, last_seen_at, revision)
VALUES (:bus, :now, :now, (SELECT value FROM counters WHERE name = 'revision'))
ON CONFLICT (bus) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = NULL

-- name: active_buses
-- Buses that have live events, by name. Jumps from bus to bus in events_ready, events_delayed and events_leased, so
-- neither the backlog of a bus nor the number of cold buses matters. (An empty name is no name: it ends the walk.)
WITH RECURSIVE active (bus, number) AS (
    SELECT :after, 0
    UNION ALL
    SELECT (
        SELECT min(next) FROM (
            SELECT min(bus) AS next FROM events WHERE ready = 1 AND bus > active.bus
            UNION ALL
            SELECT min(bus) FROM events WHERE ready = 0 AND status = 'PENDING' AND bus > active.bus
            UNION ALL
            SELECT min(bus) FROM events WHERE status = 'PROCESSING' AND bus > active.bus
        )
    ), number + 1
    FROM active WHERE bus IS NOT NULL AND number < :limit
)
SELECT bus FROM active WHERE bus IS NOT NULL AND number > 0

-- name: archivable_buses
-- Buses that were stopped long enough ago and have no live events. Walks event_buses_stopped.
SELECT bus FROM event_buses
WHERE stopped_at <= :until
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND ready = 1)
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND ready = 0 AND status = 'PENDING')
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND status = 'PROCESSING')
ORDER BY stopped_at, bus LIMIT :limit

-- name: list_buses
-- Registered buses by name. Walks the primary key of event_buses.
SELECT bus, created_at, last_seen_at, stopped_at FROM event_buses WHERE bus > :after ORDER BY bus LIMIT :limit

-- name: stop_bus
-- Marks a bus as stopped.
UPDATE event_buses SET stopped_at = :now WHERE bus = :bus

-- name: forget_bus
-- Forgets an archived bus.
DELETE FROM event_buses WHERE bus = ?

-- name: register_handlers
-- Makes a handler of a node known; a known one keeps when it was created.
INSERT INTO event_handlers (bus, handler_id, node, pattern, created_at, last_seen_at, kept_until)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (bus, handler_id, node) DO UPDATE
SET pattern = excluded.pattern, last_seen_at = excluded.last_seen_at, kept_until = excluded.kept_until

-- name: list_handlers
-- The handlers of a bus, those included whose time is over. Walks the primary key of event_handlers.
SELECT handler_id, node, pattern, created_at, last_seen_at, kept_until FROM event_handlers
WHERE bus = ? ORDER BY handler_id, node

-- name: revise_handlers
-- The bus has another list of handlers now.
UPDATE event_buses SET revision = (SELECT value FROM counters WHERE name = 'revision') WHERE bus = ?

-- name: get_revision
-- Which list of handlers a bus has.
SELECT revision FROM event_buses WHERE bus = ?

-- name: count_revision
-- A number that no list of handlers had before.
UPDATE counters SET value = value + 1 WHERE name = 'revision'

-- name: forget_handler
-- Forgets a handler of a node. Relies on the primary key of event_handlers.
DELETE FROM event_handlers WHERE bus = ? AND handler_id = ? AND node = ?

-- name: forget_handlers
-- Forgets the handlers of an archived bus. Relies on the primary key of event_handlers.
DELETE FROM event_handlers WHERE bus = ?
