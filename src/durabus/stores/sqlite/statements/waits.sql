-- Waits: results that wait for an event. A new event finds them by bus, type, names of fields, and values.

-- name: any_waits
-- Returns whether any event waits. One probe of event_results_waiting.
SELECT EXISTS (SELECT 1 FROM event_results WHERE status = 'WAITING' AND value ->> '$.shape' >= '')

-- name: shapes_of_waits
-- Returns the shapes of the waits for one bus and type, each once: it jumps from one shape to the next. Relies on
-- event_results_waiting.
WITH RECURSIVE shapes (shape) AS (
    SELECT min(value ->> '$.shape') FROM event_results
    WHERE status = 'WAITING' AND value ->> '$.shape' >= :prefix
    UNION ALL
    SELECT (
        SELECT min(value ->> '$.shape') FROM event_results
        WHERE status = 'WAITING' AND value ->> '$.shape' > shapes.shape
    ) FROM shapes WHERE shapes.shape IS NOT NULL AND substr(shapes.shape, 1, length(:prefix)) = :prefix
)
SELECT shape FROM shapes WHERE substr(shape, 1, length(:prefix)) = :prefix

-- name: waiters
-- Returns the live events below an id that wait for these values. Relies on event_results_waiting and the primary key
-- of events.
SELECT result.id, result.handler_id, result.value, event.bus, event.status
FROM event_results AS result CROSS JOIN events AS event
WHERE result.status = 'WAITING' AND result.value ->> '$.shape' = :shape AND result.value ->> '$.key' = :key
    AND result.id < :id AND event.id = result.id

-- name: meet_wait
-- Keeps the event that met a wait. Relies on the unique index of event_results.
UPDATE event_results SET status = 'KEPT', value = ? WHERE id = ? AND handler_id = ? AND status = 'WAITING'

-- name: wake_waiting_event
-- Makes a waiting event due: the next claim finds it among the delayed ones. Relies on the primary key of events.
UPDATE events SET due_at = min(due_at, updated_at) WHERE id = ? AND status = 'PENDING'

-- name: known_results
-- Returns the names of the results of events. Relies on the unique index of event_results.
SELECT id, handler_id FROM event_results WHERE id IN (SELECT value FROM json_each(:ids))

-- name: stored_live
-- Returns live events of a bus and type after an id. Walks the primary key of events.
SELECT {event} FROM events WHERE id > :after AND +bus = :bus AND type = :type ORDER BY id LIMIT :limit

-- name: stored_dead
-- Returns dead letters of a bus and type after an id. Walks the primary key of dead_letters.
SELECT {dead_letter} FROM dead_letters WHERE id > :after AND +bus = :bus AND type = :type ORDER BY id LIMIT :limit

-- name: stored_completed
-- Returns COMPLETED and CANCELLED events of a bus and type after an id. Walks event_log_completed.
SELECT {completed} FROM event_log
WHERE bus = :bus AND id > :after AND completed = 1 AND type = :type ORDER BY id LIMIT :limit
