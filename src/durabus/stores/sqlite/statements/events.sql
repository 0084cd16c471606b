-- Events: published, fetched, found and counted.

-- name: add_events
-- Stores one new event of a batch, with ids in the order of the batch.
-- A missing value comes as '' or 0 and is stored as NULL: binding None costs the driver more than the nullif.
INSERT INTO events (
    id, event_id, bus, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key,
    ready, due_at, created_at, updated_at, status, attempts, generation, fence, has_results
) VALUES (
    ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, 0), nullif(?, ''), nullif(?, ''),
    ?, ?, ?, ?, 'PENDING', 0, 0, 0, 0
)

-- name: add_plain_events
-- Does what add_events does for the common event: due at once, priority 0, nothing optional. It binds eight values, not
-- fifteen.
INSERT INTO events (
    id, event_id, bus, type, payload, due_at, created_at, updated_at,
    ready, status, priority, attempts, generation, fence, has_results
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, 'PENDING', 0, 0, 0, 0, 0)

-- name: add_event_tags
-- Makes ready events of an id range claimable by their tags. Relies on the primary key of event_tags.
INSERT INTO event_tags (bus, tag, priority, id)
SELECT event.bus, tag.value, event.priority, event.id
FROM events AS event CROSS JOIN json_each(iif(json_valid(event.tags), event.tags, '[]')) AS tag
WHERE event.id BETWEEN :first AND :last AND event.ready = 1 AND event.tags IS NOT NULL
ON CONFLICT DO NOTHING

-- name: add_idempotency_keys
-- Stores the idempotency keys of an id range. Fewer changes than keys mean that one of them is known already.
-- Relies on the primary key of idempotency_keys.
INSERT INTO idempotency_keys (bus, idempotency_key, id)
SELECT bus, idempotency_key, id FROM events
WHERE id BETWEEN :first AND :last AND idempotency_key IS NOT NULL ORDER BY id
ON CONFLICT DO NOTHING

-- name: known_event_ids
-- Returns which of the given event_ids are taken, and by which id. Relies on event_log_published.
SELECT event_id, id FROM event_log WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))

-- name: known_idempotency_key
-- Returns the event of an idempotency key of a bus. Relies on the primary key of idempotency_keys.
SELECT id FROM idempotency_keys WHERE bus = ? AND idempotency_key = ?

-- name: get_event_id
-- Returns the id of an event by its event_id. Relies on event_log_published.
SELECT id FROM event_log WHERE event_id = ? AND known = 1

-- name: get_live_event
-- Returns a PENDING or PROCESSING event. Relies on the primary key of events.
SELECT {event} FROM events WHERE id = ?

-- name: get_completed_event
-- Returns a COMPLETED or CANCELLED event, from its last log entry. Relies on event_log_event.
SELECT {completed} FROM event_log WHERE id = ? AND action <> 'PUBLISHED' AND completed = 1

-- name: get_dead_letter
-- Returns an event that ended FAILED or COMPLETED_WITH_ERRORS. Relies on the primary key of dead_letters.
SELECT {dead_letter} FROM dead_letters WHERE id = ?

-- name: get_state
-- Returns a live event with the token of its claim. Relies on the primary key of events.
SELECT {event}, token, lock_key, has_results FROM events WHERE id = ?

-- name: find_live
-- Returns PENDING and PROCESSING events below an id. events.py adds the other conditions, the order and the limit.
-- Walks the primary key of events downwards, or uses events_parent.
SELECT {event} FROM events WHERE id < :before_id

-- name: find_completed
-- Returns COMPLETED and CANCELLED events below an id. events.py adds to it as to find_live. Walks event_log_completed
-- for one bus, event_log_event for all (the plus keeps the planner from sorting every one), or uses event_log_parent.
SELECT {completed} FROM event_log WHERE id < :before_id AND action <> 'PUBLISHED'

-- name: find_dead
-- Returns dead letters below an id. events.py adds to it as to find_live. Walks the primary key of dead_letters, or
-- uses dead_letters_parent.
SELECT {dead_letter} FROM dead_letters WHERE id < :before_id

-- name: newest_live
-- Returns the newest live event below an id, of any bus. Relies on the primary key of events.
SELECT id FROM events WHERE id < :before_id ORDER BY id DESC LIMIT 1

-- name: newest_dead
-- Returns the newest dead letter below an id, of any bus. Relies on the primary key of dead_letters.
SELECT id FROM dead_letters WHERE id < :before_id ORDER BY id DESC LIMIT 1

-- name: newest_completed
-- Returns the newest event below an id that was claimed or cancelled, of any bus: no ended one is newer. Relies on
-- event_log_event.
SELECT id FROM event_log WHERE id < :before_id AND action <> 'PUBLISHED' ORDER BY id DESC LIMIT 1

-- name: newest_completed_of_bus
-- Returns the newest COMPLETED or CANCELLED event of a bus below an id. Relies on event_log_completed.
SELECT id FROM event_log WHERE bus = :bus AND id < :before_id AND completed = 1 ORDER BY id DESC LIMIT 1

-- name: few_live_ids
-- Returns the live events of a bus if it has fewer than :limit. Relies on events_ready, events_delayed,
-- events_deferred, events_leased.
SELECT id FROM events WHERE bus = :bus AND ready = 1
UNION ALL
SELECT id FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING'
UNION ALL
SELECT id FROM events WHERE bus = :bus AND ready = 2
UNION ALL
SELECT id FROM events WHERE bus = :bus AND status = 'PROCESSING'
LIMIT :limit

-- name: counts
-- Returns how many events there are of each status. Adds up event_counts, and counts PROCESSING events in
-- events_leased, which is never long.
SELECT
    coalesce(sum(live), 0), (SELECT count(*) FROM events WHERE status = 'PROCESSING'),
    coalesce(sum(completed), 0), coalesce(sum(completed_with_errors), 0), coalesce(sum(failed), 0),
    coalesce(sum(cancelled), 0)
FROM event_counts

-- name: counts_of_bus
-- Does what counts does, for one bus. Relies on the primary key of event_counts.
SELECT
    coalesce(sum(live), 0), (SELECT count(*) FROM events WHERE bus = :bus AND status = 'PROCESSING'),
    coalesce(sum(completed), 0), coalesce(sum(completed_with_errors), 0), coalesce(sum(failed), 0),
    coalesce(sum(cancelled), 0)
FROM event_counts WHERE bus = :bus

-- name: note_counts
-- Adds what a transaction changed to the numbers of a bus.
INSERT INTO event_counts (bus, live, completed, completed_with_errors, failed, cancelled)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (bus) DO UPDATE SET
    live = live + excluded.live,
    completed = completed + excluded.completed,
    completed_with_errors = completed_with_errors + excluded.completed_with_errors,
    failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled

-- name: note_completed
-- Does what note_counts does, for what complete_events wrote: its entries are the last ones of the log.
INSERT INTO event_counts (bus, live, completed, completed_with_errors, failed, cancelled)
SELECT bus, -count(*), count(*), 0, 0, 0 FROM event_log
WHERE position > :last - :count AND position <= :last GROUP BY bus
ON CONFLICT (bus) DO UPDATE SET live = live + excluded.live, completed = completed + excluded.completed

-- name: note_dead_gone
-- Does what note_counts does, for dead letters that forget_dead_letters is about to delete. Relies on the primary key
-- of dead_letters.
INSERT INTO event_counts (bus, live, completed, completed_with_errors, failed, cancelled)
SELECT bus, 0, 0, -sum(status = 'COMPLETED_WITH_ERRORS'), -sum(status = 'FAILED'), 0 FROM dead_letters
WHERE id IN (SELECT value FROM json_each(:ids)) GROUP BY bus
ON CONFLICT (bus) DO UPDATE SET
    completed_with_errors = completed_with_errors + excluded.completed_with_errors, failed = failed + excluded.failed

-- name: forget_added_events
-- Deletes what add_events wrote for an id range.
DELETE FROM events WHERE id BETWEEN :first AND :last

-- name: forget_added_keys
-- Deletes what add_idempotency_keys wrote for an id range, and no older key.
DELETE FROM idempotency_keys
WHERE id BETWEEN :first AND :last
  AND (bus, idempotency_key) IN (SELECT bus, idempotency_key FROM events WHERE id BETWEEN :first AND :last)

-- name: forget_added_entries
-- Deletes what log_published wrote for an id range, and no older entry.
-- Relies on event_log_published.
DELETE FROM event_log
WHERE known = 1 AND id BETWEEN :first AND :last
  AND event_id IN (SELECT event_id FROM events WHERE id BETWEEN :first AND :last)

-- name: last_event_id
-- Returns the largest event id ever given: the event is in the queue, or it has entries in the log beside PUBLISHED, or
-- its deletion noted the id. So publishing writes no counter. Relies on the primary keys of events and counters and on
-- event_log_event. The number is right only under the write lock.
SELECT max(
    coalesce((SELECT max(id) FROM events), 0),
    coalesce((SELECT max(id) FROM event_log WHERE action <> 'PUBLISHED'), 0),
    (SELECT value FROM counters WHERE name = 'forgotten_event_id')
)

-- name: note_forgotten_id
-- Notes the id of a deleted event, so that no event gets it again.
UPDATE counters SET value = :id WHERE name = 'forgotten_event_id' AND value < :id

-- name: completed_until
-- Returns COMPLETED and CANCELLED events whose last entry lies at or before a position and an instant, oldest first:
-- nothing follows such an entry. Walks the primary key of event_log.
SELECT id FROM event_log
WHERE position <= :until AND completed = 1 AND at <= :before
ORDER BY position LIMIT :limit

-- name: unknown_until
-- Returns ids of events that are neither live, nor dead letters, nor in the history, but have entries at or before
-- a position and an instant, oldest first. Walks the primary key of event_log; relies on event_log_event.
SELECT entry.id FROM event_log AS entry
WHERE entry.position <= :until AND entry.at <= :before
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.id = entry.id)
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE dead_letters.id = entry.id)
  AND NOT EXISTS (
      SELECT 1 FROM event_log AS ended
      WHERE ended.id = entry.id AND ended.action <> 'PUBLISHED' AND ended.completed = 1
  )
GROUP BY entry.id ORDER BY min(entry.position) LIMIT :limit

-- name: still_completed
-- Returns which of given events are COMPLETED or CANCELLED, not deleted yet and in every archive. Relies on
-- event_log_event.
SELECT id, event_id, bus, idempotency_key, status FROM event_log
WHERE id IN (SELECT value FROM json_each(:ids)) AND action <> 'PUBLISHED' AND completed = 1 AND position <= :archived
