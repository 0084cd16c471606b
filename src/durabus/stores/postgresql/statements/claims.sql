-- Claims: which event is next, which worker holds it, and how its claim ends.

-- name: claim_next_events
-- Claims the next events of a bus: see the function in migrations/0003_claims.sql.
SELECT * FROM {schema}.claim_next_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: current_claims
-- Returns the tokens and fences of the claims on given events. Relies on events_id.
SELECT id, token, fence FROM {schema}.events
WHERE id = ANY ($1::bigint[]) AND status = 'PROCESSING' AND token IS NOT NULL

-- name: held_events
-- Returns the events that a token holds, in queue order. Relies on events_token.
SELECT {event} FROM {schema}.events WHERE token = $1 AND status = 'PROCESSING' ORDER BY priority DESC, id

-- name: abandoned_claims
-- Returns the claims that ended because their lease was over, on events that no worker has claimed since: then the
-- newest entry of the event is ABANDONED. Relies on events_id and event_log_event.
SELECT last.id, last.token, last.fence, last.worker_id, (
    SELECT date_part('epoch', max(e.at)) FROM {schema}.event_log AS e
    WHERE e.id = last.id AND e.fence = last.fence AND e.action = 'PICKED'
), (
    SELECT date_part('epoch', max(e.at)) FROM {schema}.event_log AS e
    WHERE e.id = last.id AND e.fence = last.fence AND e.action = 'STARTED'
)
FROM (
    SELECT DISTINCT ON (log.id) log.id, log.action, log.token, log.fence, log.worker_id
    FROM {schema}.event_log AS log
    WHERE log.id = ANY (ARRAY(
        SELECT event.id FROM {schema}.events AS event
        WHERE event.id = ANY ($1::bigint[]) AND event.status = 'PENDING' AND event.fence > 0
    ))
    ORDER BY log.id, log.tx DESC, log.position DESC
) AS last
WHERE last.action = 'ABANDONED' AND last.token IS NOT NULL

-- name: expired_events
-- Returns and locks events of a bus whose lease is over, the longest expired first. Relies on events_leased.
SELECT id FROM {schema}.events
WHERE bus = $1 AND status = 'PROCESSING' AND lease_expires_at <= to_timestamp($2)
ORDER BY lease_expires_at, id LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: expired_events_of_all
-- Returns and locks events of any bus whose lease is over. Reads events_leased alone: one entry for each PROCESSING
-- event, never the backlog.
SELECT id FROM {schema}.events
WHERE status = 'PROCESSING' AND lease_expires_at <= to_timestamp($1)
ORDER BY lease_expires_at, id LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: start_events
-- Marks that a worker began to work on the events. Relies on events_id.
UPDATE {schema}.events SET started_at = to_timestamp($2), updated_at = to_timestamp($2) WHERE id = ANY ($1::bigint[])

-- name: renew_event_claims
-- Extends the leases of current claims. Relies on events_id. `coalesce` and `IS TRUE` keep the planner from comparing
-- all existing claims with all given ones: see complete_events.
UPDATE {schema}.events AS event SET lease_expires_at = to_timestamp($4)
WHERE event.id = ANY ($1::bigint[]) AND coalesce(event.status, '') = 'PROCESSING'
    AND ((event.id, event.token, event.fence) IN (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[]))) IS TRUE
RETURNING event.id, event.lock_key, event.token, event.fence

-- name: return_events
-- Sets events back to PENDING: failed with a retry, released, abandoned or reset. The old tokens can no longer renew;
-- the log keeps the token of an abandoned claim. An event that is due at once goes to queue_part 2. Relies on
-- events_id: `= ANY` keeps the planner from a join that reads every event.
UPDATE {schema}.events AS event SET
    status = 'PENDING', queue_part = CASE WHEN given.ready THEN 2 ELSE 0 END, attempts = given.attempts,
    worker_id = NULL, token = NULL, lock_key = NULL, updated_at = to_timestamp(given.updated),
    due_at = to_timestamp(given.due), processing_started_at = NULL, started_at = NULL, lease_expires_at = NULL,
    errors = given.errors, waiting_fence = CASE WHEN given.waits THEN event.fence END
FROM unnest(
    $1::bigint[], $2::boolean[], $3::integer[], $4::double precision[], $5::double precision[], $6::text[],
    $7::boolean[]
) AS given (id, ready, attempts, updated, due, errors, waits)
WHERE event.id = ANY ($1::bigint[]) AND event.id = given.id

-- name: wake_parents
-- Makes parents due whose last child has ended, and returns their buses: see the function in
-- migrations/0003_claims.sql.
SELECT {schema}.wake_parents($1, $2::text[]::uuid[])

-- name: complete_events
-- Completes plain claims: see the function in migrations/0003_claims.sql.
SELECT {schema}.complete_events(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
)

-- name: complete_and_claim_events
-- Completes plain claims and claims the next events: see the function in migrations/0003_claims.sql.
SELECT * FROM {schema}.complete_and_claim_events(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
    $18, $19, $20, $21, $22, $23, $24, $25, $26, $27
)

-- name: complete_and_read_events
-- Completes plain claims and returns their log entries: see the function.
SELECT {entry} FROM {schema}.complete_and_read_events(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
)

-- name: settlement_entries
-- The log entries that settlements wrote, by event and fence: a claim is settled once. Only settlements and ABANDONED
-- have a token. Relies on event_log_event.
SELECT {entry} FROM {schema}.event_log
WHERE id = ANY ($1::bigint[]) AND (id, fence) IN (SELECT * FROM unnest($1::bigint[], $2::bigint[]))
    AND token IS NOT NULL AND action <> 'ABANDONED'

-- name: last_settlements
-- Returns how the newest settlement of each event ended. Only settlements and ABANDONED have a token. Relies on
-- event_log_event.
SELECT DISTINCT ON (id) id, token, fence, action, status, date_part('epoch', next_retry_at) FROM {schema}.event_log
WHERE id = ANY ($1::bigint[]) AND token IS NOT NULL AND action <> 'ABANDONED'
ORDER BY id, tx DESC, position DESC

-- name: next_wakeup
-- Returns whether each bus has events to claim now, and the seconds until it may have more: until the earliest due time
-- or lease end. Four index probes: events_fresh, events_returned, events_delayed, events_leased; ORDER BY keeps the
-- planner there.
SELECT
    coalesce(
        (SELECT true FROM {schema}.events WHERE bus = given.bus AND queue_part = 1 ORDER BY -priority, id LIMIT 1),
        (SELECT true FROM {schema}.events WHERE bus = given.bus AND queue_part = 2 ORDER BY -priority, id LIMIT 1),
        false
    ),
    date_part('epoch', least(
        (SELECT due_at FROM {schema}.events
         WHERE bus = given.bus AND queue_part = 0 AND status = 'PENDING' ORDER BY due_at, id LIMIT 1),
        (SELECT lease_expires_at FROM {schema}.events
         WHERE bus = given.bus AND status = 'PROCESSING' ORDER BY lease_expires_at, id LIMIT 1)
    )) - date_part('epoch', {schema}.the_time($2))
FROM unnest($1::text[]) WITH ORDINALITY AS given (bus, n) ORDER BY given.n

-- name: take_advisory_lock
-- Makes transactions that use the same lock wait for each other until they end, whether the lock has a row or not.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))

-- name: take_advisory_locks
-- Does what take_advisory_lock does for each key. The caller sorts the keys, so that two transactions do not wait for
-- each other.
SELECT pg_advisory_xact_lock(hashtextextended(key, 0)) FROM unnest($1::text[]) WITH ORDINALITY AS given (key, n) ORDER BY n

-- name: now
-- Returns the time of the server's clock.
SELECT date_part('epoch', clock_timestamp())
