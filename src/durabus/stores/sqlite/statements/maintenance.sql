-- What is old goes; schema and migrations are checked.

-- name: old_completed
-- COMPLETED events of a bus that ended long enough ago, the oldest ids first. Relies on event_log_completed alone.
SELECT id FROM event_log
WHERE bus = :bus AND completed = 1 AND at <= :until
ORDER BY id LIMIT :limit

-- name: excess_completed
-- COMPLETED events of a bus beyond the :keep newest, the oldest ids first. Relies on event_log_completed alone.
SELECT id FROM event_log
WHERE bus = :bus AND completed = 1 AND id <= (
    SELECT id FROM event_log WHERE bus = :bus AND completed = 1 ORDER BY id DESC LIMIT 1 OFFSET :keep
)
ORDER BY id LIMIT :limit

-- name: cut_log
-- Where a piece of the log ends that has so many entries: one step of the walk along the primary key of event_log.
SELECT position FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT 1 OFFSET :skip

-- name: forget_completed
-- The entry stays in the log but is no event any more. Relies on event_log_event.
UPDATE event_log SET completed = NULL WHERE id = ? AND action <> 'PUBLISHED' AND completed = 1

-- name: forget_completed_events
-- Completed events leave the queue. Relies on the primary key of events.
DELETE FROM events WHERE id IN (SELECT value FROM json_each(:ids))

-- name: forget_entries
-- All other log entries of trimmed events. Relies on event_log_event.
DELETE FROM event_log WHERE action <> 'PUBLISHED' AND id IN (SELECT value FROM json_each(:ids))

-- name: forget_published_entries
-- The PUBLISHED entries of trimmed events. Relies on event_log_published.
DELETE FROM event_log WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))

-- name: forget_unknown_entries
-- The entries of unknown events up to a position and an instant. Walks the primary key of event_log.
DELETE FROM event_log
WHERE position <= :until AND at <= :before AND id IN (SELECT value FROM json_each(:ids))

-- name: forget_event_ids
-- The event_ids may be published again; the entries stay. Relies on event_log_published.
UPDATE event_log SET known = NULL WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))

-- name: forget_event_tags
-- A claimed or removed event cannot be found by its tag any more. Relies on the primary key of event_tags.
DELETE FROM event_tags WHERE bus = ? AND tag = ? AND priority = ? AND id = ?

-- name: forget_keys
-- The idempotency key may be used again.
DELETE FROM idempotency_keys WHERE bus = ? AND idempotency_key = ? AND id = ?

-- name: forget_live_event
-- The event leaves the queue.
DELETE FROM events WHERE id = ?
