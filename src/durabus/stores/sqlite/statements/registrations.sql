-- Registrations of buses and handlers.

-- name: register_bus
-- Registers a bus; a stopped one becomes active again.
INSERT INTO event_buses (bus, created_at, last_seen_at, revision)
VALUES (:bus, :now, :now, (SELECT value FROM counters WHERE name = 'revision'))
ON CONFLICT (bus) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = NULL

-- name: active_buses
-- Returns buses that have live events, by name. Jumps from bus to bus in events_ready, events_delayed and
-- events_leased, so its cost depends neither on the backlog of a bus nor on the number of idle buses.
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
-- Returns buses that stopped long enough ago and have no live events. Walks event_buses_stopped.
SELECT bus FROM event_buses
WHERE stopped_at <= :until
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND ready = 1)
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND ready = 0 AND status = 'PENDING')
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND status = 'PROCESSING')
ORDER BY stopped_at, bus LIMIT :limit

-- name: list_buses
-- Returns registered buses by name. Walks the primary key of event_buses.
SELECT bus, created_at, last_seen_at, stopped_at FROM event_buses WHERE bus > :after ORDER BY bus LIMIT :limit

-- name: stop_bus
-- Marks a bus as stopped.
UPDATE event_buses SET stopped_at = :now WHERE bus = :bus

-- name: forget_bus
-- Deletes an archived bus.
DELETE FROM event_buses WHERE bus = ?

-- name: register_handlers
-- Registers a handler of a node; a known one keeps its created_at.
INSERT INTO event_handlers (bus, handler_id, node, pattern, created_at, last_seen_at, kept_until)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (bus, handler_id, node) DO UPDATE
SET pattern = excluded.pattern, last_seen_at = excluded.last_seen_at, kept_until = excluded.kept_until

-- name: list_handlers
-- Returns the handlers of a bus, expired ones included. Walks the primary key of event_handlers.
SELECT handler_id, node, pattern, created_at, last_seen_at, kept_until FROM event_handlers
WHERE bus = ? ORDER BY handler_id, node

-- name: revise_handlers
-- Gives the list of handlers of a bus its new revision.
UPDATE event_buses SET revision = (SELECT value FROM counters WHERE name = 'revision') WHERE bus = ?

-- name: get_revision
-- Returns the revision of the list of handlers of a bus.
SELECT revision FROM event_buses WHERE bus = ?

-- name: count_revision
-- Makes a revision that no list of handlers had before.
UPDATE counters SET value = value + 1 WHERE name = 'revision'

-- name: forget_handler
-- Deletes a handler of a node. Relies on the primary key of event_handlers.
DELETE FROM event_handlers WHERE bus = ? AND handler_id = ? AND node = ?

-- name: forget_handlers
-- Deletes the handlers of an archived bus. Relies on the primary key of event_handlers.
DELETE FROM event_handlers WHERE bus = ?
