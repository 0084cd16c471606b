-- Maintenance: finds and deletes old events and entries.

-- name: old_completed
-- Returns COMPLETED and CANCELLED events of a bus that ended long enough ago, the oldest ids first. Relies on
-- event_log_completed alone.
SELECT id FROM event_log
WHERE bus = :bus AND completed = 1 AND at <= :until AND position <= :archived
ORDER BY id LIMIT :limit

-- name: excess_completed
-- Returns COMPLETED and CANCELLED events of a bus beyond the :keep newest, the oldest ids first. With a :node it stops
-- at the first event that ended after :recent and that another node waits for. Relies on event_log_completed alone, and
-- for recent events on their rows.
WITH excess (id, unread) AS (
    SELECT id, :node IS NOT NULL AND at > :recent AND instr(metadata, :addressed) > 0 AND instr(metadata, :node) = 0
    FROM event_log
    WHERE bus = :bus AND completed = 1 AND id <= (
        SELECT id FROM event_log WHERE bus = :bus AND completed = 1 ORDER BY id DESC LIMIT 1 OFFSET :keep
    ) AND position <= :archived
    ORDER BY id LIMIT :limit
)
SELECT id FROM excess WHERE id < coalesce((SELECT min(id) FROM excess WHERE unread), 9223372036854775807) ORDER BY id

-- name: cut_log
-- Returns the end of a piece of the log with :skip + 1 entries. Walks the primary key of event_log.
SELECT position FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT 1 OFFSET :skip

-- name: forget_completed
-- Removes a COMPLETED or CANCELLED event; its entries stay in the log. Relies on event_log_event.
UPDATE event_log SET completed = NULL WHERE id = ? AND action <> 'PUBLISHED' AND completed = 1

-- name: leave_queue
-- Removes events from the queue. Relies on the primary key of events.
DELETE FROM events WHERE id IN (SELECT value FROM json_each(:ids))

-- name: forget_entries
-- Deletes the log entries of trimmed events, except PUBLISHED. Relies on event_log_event.
DELETE FROM event_log WHERE action <> 'PUBLISHED' AND id IN (SELECT value FROM json_each(:ids))

-- name: forget_published_entries
-- Deletes the PUBLISHED entries of trimmed events. Relies on event_log_published.
DELETE FROM event_log WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))

-- name: forget_unknown_entries
-- Deletes the entries of unknown events up to a position and an instant. Walks the primary key of event_log.
DELETE FROM event_log
WHERE position <= :until AND at <= :before AND id IN (SELECT value FROM json_each(:ids))

-- name: forget_event_ids
-- Frees event_ids, so that they can be published again; the entries stay. Relies on event_log_published.
UPDATE event_log SET known = NULL WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))

-- name: forget_event_tags
-- Deletes the tags of a claimed or removed event, so that no claim by tag finds it.
-- Relies on the primary key of event_tags.
DELETE FROM event_tags WHERE bus = ? AND tag = ? AND priority = ? AND id = ?

-- name: forget_keys
-- Frees an idempotency key, so that it can be used again.
DELETE FROM idempotency_keys WHERE bus = ? AND idempotency_key = ? AND id = ?
