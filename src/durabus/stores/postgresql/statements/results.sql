-- Handler results, and claims on single handlers.

-- name: list_results
-- Returns the handlers of events in the order they first appeared. Relies on the primary key of event_results.
SELECT id, {result} FROM {schema}.event_results WHERE id = ANY ($1::bigint[]) ORDER BY result_id

-- name: put_results
-- Writes handlers' states; existing rows keep their place in the order. Relies on the primary key of event_results.
INSERT INTO {schema}.event_results (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, token,
    settled_token, lock_key
)
SELECT
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, to_timestamp(expires), token,
    settled_token, lock_key
FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::double precision[], $8::bigint[],
    $9::text[], $10::double precision[], $11::text[], $12::text[], $13::text[]
) WITH ORDINALITY AS given (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, expires, token, settled_token,
    lock_key, n
) ORDER BY n
ON CONFLICT (id, handler_id) DO UPDATE SET
    status = excluded.status, attempts = excluded.attempts, error = excluded.error, value = excluded.value,
    execution_time_ms = excluded.execution_time_ms, fence = excluded.fence, worker_id = excluded.worker_id,
    lease_expires_at = excluded.lease_expires_at, token = excluded.token, settled_token = excluded.settled_token,
    lock_key = excluded.lock_key

-- name: offered_events
-- Returns the first events of a bus with a handler that is offered now, or that this token has claimed; in a serial mode
-- only those whose handlers are not locked. One index probe for each handler id and one for the token if there are none:
-- event_results_offered and event_results_token.
(
    SELECT result.id FROM {schema}.event_results AS result
    JOIN {schema}.events AS event ON event.id = result.id
    WHERE result.handler_id = ANY ($2::text[]) AND result.status IN ('PENDING', 'PROCESSING')
        AND result.lease_expires_at <= {schema}.the_time($6) AND event.bus = $1 AND event.status = 'PROCESSING'
        AND NOT ($5 AND EXISTS (
            SELECT FROM {schema}.locks AS lock
            WHERE lock.key = 'handler:event:' || event.event_id AND lock.token IS NOT NULL
                AND lock.expires_at > {schema}.the_time($6)
        ))
    LIMIT greatest($4::integer, 0)
) UNION ALL (
    SELECT id FROM {schema}.event_results WHERE token = $3 LIMIT 1
) LIMIT 1

-- name: lock_offered_events
-- Returns the first events of a bus with a handler that is offered now, as offered_events does, and locks them until the
-- transaction ends. It skips events that another transaction has locked, so that workers that look at the same time get
-- different ones.
SELECT result.id FROM {schema}.event_results AS result
JOIN {schema}.events AS event ON event.id = result.id
WHERE result.handler_id = ANY ($2::text[]) AND result.status IN ('PENDING', 'PROCESSING')
    AND result.lease_expires_at <= to_timestamp($5) AND event.bus = $1 AND event.status = 'PROCESSING'
    AND NOT ($4 AND EXISTS (
        SELECT FROM {schema}.locks AS lock
        WHERE lock.key = 'handler:event:' || event.event_id AND lock.token IS NOT NULL
            AND lock.expires_at > to_timestamp($5)
    ))
ORDER BY result.id LIMIT $3 FOR NO KEY UPDATE OF event SKIP LOCKED

-- name: events_of_handler_token
-- Returns the events on whose handlers a token has claims. Relies on event_results_token.
SELECT DISTINCT id FROM {schema}.event_results WHERE token = $1 ORDER BY id

-- name: events_with_handlers_under
-- Returns the live events that have handler claims which were made under a lock. Relies on event_results_locked.
SELECT DISTINCT id FROM {schema}.event_results AS result
WHERE lock_key = $1 AND EXISTS (SELECT 1 FROM {schema}.events WHERE events.id = result.id) ORDER BY id

-- name: keep_results
-- Writes results under current claims and returns how many of each event, and its bus. A fence never falls. The row of a handler that
-- is claimed stays as it is: then a number is too small, and the lifecycle decides. The lock on an event lasts until the
-- commit, so that no other claim comes between the check and the write. Relies on events_id and the primary key of
-- event_results; `coalesce` and `IS TRUE` as in renew_event_claims.
WITH held AS MATERIALIZED (
    SELECT event.id, event.bus, event.has_results FROM {schema}.events AS event
    WHERE event.id = ANY ($1::bigint[]) AND coalesce(event.status, '') = 'PROCESSING'
        AND ((event.id, event.token, event.fence) IN (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[]))) IS TRUE
    ORDER BY event.id FOR NO KEY UPDATE
), marked AS (
    UPDATE {schema}.events SET has_results = true
    WHERE id = ANY (ARRAY(SELECT held.id FROM held WHERE NOT held.has_results))
), written AS (
    INSERT INTO {schema}.event_results (
        id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at
    )
    SELECT
        id, handler_id, status, attempts, error, value, execution_time_ms, result_fence, worker_id, to_timestamp(expires)
    FROM unnest(
        $1::bigint[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::text[], $9::double precision[],
        $10::bigint[], $11::text[], $12::double precision[]
    ) WITH ORDINALITY AS given (
        id, handler_id, status, attempts, error, value, execution_time_ms, result_fence, worker_id, expires, n
    )
    WHERE id IN (SELECT held.id FROM held) ORDER BY n
    ON CONFLICT (id, handler_id) DO UPDATE SET
        status = excluded.status, attempts = excluded.attempts, error = excluded.error, value = excluded.value,
        execution_time_ms = excluded.execution_time_ms, fence = greatest(event_results.fence, excluded.fence),
        worker_id = excluded.worker_id, lease_expires_at = excluded.lease_expires_at, settled_token = NULL
    WHERE event_results.token IS NULL
    RETURNING id
)
SELECT held.id, count(*)::integer, held.bus FROM written JOIN held ON held.id = written.id GROUP BY held.id, held.bus

-- name: mark_results
-- Marks that events have rows in event_results, which their settlement must read.
UPDATE {schema}.events SET has_results = true WHERE id = ANY ($1::bigint[]) AND NOT has_results

-- name: forget_results
-- Deletes the results of deleted events. Relies on the primary key of event_results.
DELETE FROM {schema}.event_results WHERE id = ANY ($1::bigint[])

-- name: forget_handler_results
-- Deletes the states of single handlers. Relies on the primary key of event_results.
DELETE FROM {schema}.event_results AS result USING unnest($1::bigint[], $2::text[]) AS gone (id, handler_id)
WHERE result.id = gone.id AND result.handler_id = gone.handler_id

-- name: cleanup_results
-- Deletes results of events that are neither live nor dead letters, from the oldest id.
-- Walks the primary key of event_results.
DELETE FROM {schema}.event_results WHERE (id, handler_id) IN (
    SELECT result.id, result.handler_id FROM {schema}.event_results AS result
    WHERE NOT EXISTS (SELECT FROM {schema}.events WHERE events.id = result.id)
      AND NOT EXISTS (SELECT FROM {schema}.dead_letters WHERE dead_letters.id = result.id)
    ORDER BY result.id, result.handler_id LIMIT $1
) RETURNING 1
