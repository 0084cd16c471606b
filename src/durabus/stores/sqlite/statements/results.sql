-- Handler results, and claims on single handlers.

-- name: list_results
-- Returns the handlers of one event in the order they first appeared. Relies on the unique index of event_results.
SELECT {result} FROM event_results WHERE id = ? ORDER BY result_id

-- name: list_results_by_name
-- Returns the results of one event in order of handler_id. Relies on the unique index of event_results.
SELECT {result} FROM event_results WHERE id = ? ORDER BY handler_id

-- name: results_of_events
-- Returns the results of events in the order they first appeared. Relies on the unique index of event_results.
SELECT id, {result} FROM event_results WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY result_id

-- name: offered_events
-- Returns the first events of a bus with a handler that is offered now, or that this token has claimed; in a serial mode
-- only those whose handlers are not locked. Two index probes for each handler id and one for the token if there are none:
-- event_results_offered and event_results_token. The `+` keeps the planner there.
SELECT result.id FROM event_results AS result CROSS JOIN events AS event
WHERE result.handler_id IN (SELECT value FROM json_each(:handler_ids))
    AND result.status IN ('PENDING', 'PROCESSING') AND result.lease_expires_at <= :now
    AND event.id = result.id AND +event.bus = :bus AND +event.status = 'PROCESSING'
    AND NOT (:serial AND EXISTS (
        SELECT 1 FROM locks
        WHERE key = 'handler:event:' || event.event_id AND token IS NOT NULL AND expires_at > :now
    ))
    AND :limit > 0
UNION
SELECT id FROM event_results WHERE token = :token
ORDER BY 1 LIMIT max(:limit, 1)

-- name: events_of_handler_token
-- Returns the events on whose handlers a token has claims. Relies on event_results_token.
SELECT DISTINCT id FROM event_results WHERE token = ? ORDER BY id

-- name: events_with_handlers_under
-- Returns the live events that have handler claims which were made under a lock, and when the last of their leases ends.
-- Relies on event_results_locked.
SELECT id, max(lease_expires_at) FROM event_results AS result
WHERE lock_key = ? AND EXISTS (SELECT 1 FROM events WHERE events.id = result.id) GROUP BY id

-- name: put_result
-- Writes a handler's state; an existing row keeps its place in the order. Relies on the unique index of event_results.
INSERT INTO event_results (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, token,
    settled_token, lock_key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id, handler_id) DO UPDATE SET
    status = excluded.status, attempts = excluded.attempts, error = excluded.error, value = excluded.value,
    execution_time_ms = excluded.execution_time_ms, fence = excluded.fence, worker_id = excluded.worker_id,
    lease_expires_at = excluded.lease_expires_at, token = excluded.token, settled_token = excluded.settled_token,
    lock_key = excluded.lock_key

-- name: keep_result
-- Writes a result under the claim on its event, which this transaction has checked. A fence never falls. The row of a
-- handler that is claimed stays as it is: then no row changes, and the lifecycle decides.
-- Relies on the unique index of event_results.
INSERT INTO event_results (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, token,
    settled_token, lock_key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id, handler_id) DO UPDATE SET
    status = excluded.status, attempts = excluded.attempts, error = excluded.error, value = excluded.value,
    execution_time_ms = excluded.execution_time_ms, fence = max(fence, excluded.fence), worker_id = excluded.worker_id,
    lease_expires_at = excluded.lease_expires_at, settled_token = NULL
WHERE token IS NULL

-- name: mark_results
-- Marks that an event has rows in event_results, which its settlement must read.
UPDATE events SET has_results = 1 WHERE id = ?

-- name: forget_result
-- Deletes one handler's state. Relies on the unique index of event_results.
DELETE FROM event_results WHERE id = ? AND handler_id = ?

-- name: forget_results
-- Deletes the results of deleted events. Relies on the unique index of event_results.
DELETE FROM event_results WHERE id IN (SELECT value FROM json_each(:ids))

-- name: cleanup_results
-- Deletes results of events that are neither live nor dead letters.
-- Walks the unique index of event_results from the oldest id.
DELETE FROM event_results WHERE result_id IN (
    SELECT result.result_id FROM event_results AS result
    WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.id = result.id)
      AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE dead_letters.id = result.id)
    ORDER BY result.id, result.handler_id LIMIT :limit
)
