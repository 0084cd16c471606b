-- Claims: which event is next, which worker holds it, and how its claim ends.

-- name: look_before_claim
-- Returns what a claim has to do first: whether delayed events are due, whether leases are over, and whether this token
-- holds claims already. Also returns the revision of the bus's handlers. Four index probes, whatever the backlog:
-- events_delayed, events_leased, events_token, the primary key of event_buses.
SELECT
    EXISTS (SELECT 1 FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING' AND due_at <= :now),
    EXISTS (SELECT 1 FROM events WHERE bus = :bus AND status = 'PROCESSING' AND lease_expires_at <= :now),
    EXISTS (SELECT 1 FROM events WHERE token = :token AND status = 'PROCESSING'),
    (SELECT revision FROM event_buses WHERE bus = :bus)

-- name: ready_events
-- Moves due events into the ready index, where a claim finds them fast.
UPDATE events SET ready = 1 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: ready_event_tags
-- Does what add_event_tags does, for given ids.
INSERT INTO event_tags (bus, tag, priority, id)
SELECT event.bus, tag.value, event.priority, event.id
FROM json_each(:ids) AS wanted CROSS JOIN events AS event CROSS JOIN json_each(iif(json_valid(event.tags), event.tags, '[]')) AS tag
WHERE event.id = wanted.value AND event.ready = 1 AND event.tags IS NOT NULL
ON CONFLICT DO NOTHING

-- name: next_events
-- Returns the first events of a bus that may be claimed, in queue order: larger priority, then smaller id. Walks
-- events_ready from its beginning and stops at the limit, so the backlog does not matter.
SELECT
    id, event_id, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key, attempts,
    generation, fence, errors, created_at, due_at, has_results,
    priority = 0
    AND coalesce(metadata, tags, max_attempts, parent_id, idempotency_key, errors) IS NULL
FROM events
WHERE bus = :bus AND ready = 1
ORDER BY priority DESC, id LIMIT :limit

-- name: next_events_by_id
-- Does what next_events does, for given ids.
SELECT
    id, event_id, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key, attempts,
    generation, fence, errors, created_at, due_at, has_results,
    priority = 0
    AND coalesce(metadata, tags, max_attempts, parent_id, idempotency_key, errors) IS NULL
FROM events
WHERE id IN (SELECT value FROM json_each(:ids)) AND ready = 1
ORDER BY priority DESC, id

-- name: next_events_by_tag
-- Returns the first events of a bus with one tag, in queue order. Walks the primary key of event_tags from its
-- beginning.
SELECT priority, id FROM event_tags WHERE bus = :bus AND tag = :tag ORDER BY priority DESC, id LIMIT :limit

-- name: due_events
-- Returns delayed events that are due, the longest waiting first. Relies on events_delayed.
SELECT id FROM events
WHERE bus = :bus AND ready = 0 AND status = 'PENDING' AND due_at <= :now
ORDER BY due_at, id LIMIT :limit

-- name: behind_ordering_key
-- Returns which of given events wait behind their ordering key: another event of the key is PENDING with a smaller id,
-- or is PROCESSING. Relies on events_ordering_key.
SELECT event.id
FROM json_each(:ids) AS wanted CROSS JOIN events AS event
WHERE event.id = wanted.value AND event.ordering_key IS NOT NULL AND (
    EXISTS (
        SELECT 1 FROM events AS other
        WHERE other.bus = event.bus AND other.ordering_key = event.ordering_key AND other.status = 'PENDING'
            AND other.id < event.id
    )
    OR EXISTS (
        SELECT 1 FROM events AS other
        WHERE other.bus = event.bus AND other.ordering_key = event.ordering_key AND other.status = 'PROCESSING'
    )
)

-- name: defer_behind_key
-- Defers ready events that wait behind their ordering key. The triggers on events bring them back.
UPDATE events SET ready = 2 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: claim_next_events
-- Grants the claim: the only statement that advances attempts and fence. The transaction has held the write lock since
-- before the ids were chosen, so no other claim can have taken one of them.
UPDATE events SET
    status = 'PROCESSING', ready = 0, attempts = attempts + 1, fence = fence + 1, worker_id = :worker_id,
    token = :token, lock_key = :lock_key, updated_at = :now, processing_started_at = :now, started_at = NULL,
    lease_expires_at = :expires_at
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: claims_of
-- Returns the tokens and fences of the claims on given events, to compare with those of a caller. The fifth column says
-- that completing the event touches only its own row, the log and its lock. Relies on the primary key of events.
SELECT id, token, fence, lock_key, has_results = 0, bus FROM events
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'PROCESSING'

-- name: held_events
-- Returns the events that a token holds, in queue order. Relies on events_token.
SELECT {event} FROM events WHERE token = :token AND status = 'PROCESSING' ORDER BY priority DESC, id

-- name: abandoned_claims
-- Returns the claims that ended because their lease was over, on events that no worker has claimed since: then the
-- newest entry of the event is ABANDONED. Relies on the primary key of events and on event_log_event.
SELECT event.id, last.token, event.fence, last.worker_id, (
    SELECT max(at) FROM event_log
    WHERE id = event.id AND action <> 'PUBLISHED' AND action = 'PICKED' AND fence = event.fence
), (
    SELECT max(at) FROM event_log
    WHERE id = event.id AND action <> 'PUBLISHED' AND action = 'STARTED' AND fence = event.fence
)
FROM json_each(:ids) AS wanted CROSS JOIN events AS event CROSS JOIN event_log AS last
WHERE event.id = wanted.value AND event.status = 'PENDING' AND event.fence > 0
  AND last.position = (SELECT max(position) FROM event_log WHERE id = event.id AND action <> 'PUBLISHED')
  AND last.action = 'ABANDONED' AND last.token IS NOT NULL

-- name: expired_events
-- Returns events of a bus whose lease is over, the longest expired first. Relies on events_leased.
SELECT id FROM events
WHERE bus = :bus AND status = 'PROCESSING' AND lease_expires_at <= :now
ORDER BY lease_expires_at, id LIMIT :limit

-- name: expired_events_of_all
-- Returns events of any bus whose lease is over, the longest expired first. Reads events_leased alone: one entry for
-- each PROCESSING event, never the backlog.
SELECT id FROM events INDEXED BY events_leased
WHERE status = 'PROCESSING' AND lease_expires_at <= :now
ORDER BY lease_expires_at, id LIMIT :limit

-- name: start_event
-- Marks that a worker began to work on the event.
UPDATE events SET started_at = :now, updated_at = :now WHERE id = :id

-- name: renew_event_claims
-- Extends the leases of claims that this transaction has checked. Relies on the primary key of events.
UPDATE events SET lease_expires_at = :expires_at WHERE id IN (SELECT value FROM json_each(:ids))

-- name: return_event
-- Sets an event back to PENDING: failed with a retry, released, abandoned or reset. The old token can no longer renew;
-- the log keeps the token of an abandoned claim.
UPDATE events SET
    status = 'PENDING', ready = :ready, attempts = :attempts, worker_id = NULL, token = NULL, lock_key = NULL,
    updated_at = :now, due_at = :due_at, processing_started_at = NULL, started_at = NULL, lease_expires_at = NULL,
    errors = :errors
WHERE id = :id

-- name: wait_for_children
-- Lets an event that was just released wait until its children have ended, or makes it due if none of them lives. The
-- trigger events_child_left ends the wait. Relies on the primary key of events and on events_parent.
UPDATE events SET
    waiting_fence = iif(EXISTS (SELECT 1 FROM events AS child WHERE child.parent_id = events.event_id), fence, NULL),
    due_at = iif(
        EXISTS (SELECT 1 FROM events AS child WHERE child.parent_id = events.event_id), due_at, updated_at
    )
WHERE id = :id AND fence = :fence AND status = 'PENDING'

-- name: woken_parents
-- Returns the buses of the parents that the trigger events_child_left has made due. Relies on events_woken.
UPDATE events SET waiting_fence = NULL WHERE waiting_fence = 0 RETURNING bus

-- name: complete_events
-- Writes COMPLETED entries for plain claims (no stored results) in the given order: claims of one token and fence or,
-- without a token, claims that this transaction has checked. Fewer changes than ids mean that a claim is not current or
-- not plain; then the caller takes all entries back. Each id comes with its execution time and all share the handler,
-- or an id comes with a list of both. The entry keeps the handler in the place of its results: see layout.py.
-- The entry holds all columns: from now on it is the event. Relies on the primary key of events.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, token, at, created_at,
    execution_time_ms, completed, priority, max_attempts, due_at, processing_started_at, started_at, idempotency_key,
    parent_id, tags, metadata, errors, payload, results
)
SELECT
    event.id, event.event_id, event.bus, event.type, 'COMPLETED', 'COMPLETED', event.attempts, event.generation,
    event.fence, event.worker_id, event.token, :now, event.created_at,
    iif(done.type = 'array', done.value ->> 0, done.value), 1, event.priority, event.max_attempts, event.due_at, event.processing_started_at, event.started_at,
    event.idempotency_key, event.parent_id, event.tags, event.metadata, event.errors, event.payload,
    iif(done.type = 'array', done.value -> 1, :handler)
FROM json_each(:run) AS done CROSS JOIN events AS event
WHERE event.id = CAST(done.key AS INTEGER)
  AND (
      :token IS NULL
      OR event.token = :token AND event.fence = :fence AND event.status = 'PROCESSING'
      AND event.has_results = 0
  )

-- name: uncomplete_events
-- Deletes the entries that complete_events wrote: they are the last of the log, and no reader has seen them.
DELETE FROM event_log WHERE position > :last - :count AND position <= :last

-- name: last_settlement
-- Returns how the newest settlement of an event ended. Only settlements and ABANDONED have a token. Relies on
-- event_log_event.
SELECT id, token, fence, action, status, next_retry_at FROM event_log
WHERE id = ? AND action <> 'PUBLISHED' AND action <> 'ABANDONED' AND token IS NOT NULL ORDER BY position DESC LIMIT 1

-- name: next_wakeup
-- Returns whether a bus has events to claim now, and when it may have more: at the earliest due time and the earliest
-- lease end. Three index probes: events_ready, events_delayed, events_leased.
SELECT
    EXISTS (SELECT 1 FROM events WHERE bus = :bus AND ready = 1),
    (SELECT min(due_at) FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING'),
    (SELECT min(lease_expires_at) FROM events WHERE bus = :bus AND status = 'PROCESSING')

-- name: handler_news
-- Returns how often handlers were offered or settled.
SELECT value FROM counters WHERE name = 'handler_news'

-- name: add_handler_news
-- Wakes workers of other processes: a handler was offered or settled.
UPDATE counters SET value = value + 1 WHERE name = 'handler_news'

-- name: take_write_lock
-- Changes nothing, but takes SQLite's write lock, so that a caller's transaction reads the newest state.
UPDATE counters SET value = value WHERE name = 'lock_fence'
