-- The event log, and the positions of its readers.

-- name: append_entry
-- Writes the log entry of a transition that the lifecycle decided. The last columns are set for COMPLETED and
-- CANCELLED only: then this row is the event, and get_event reads it.
INSERT INTO event_log (
    action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, worker_id, error,
    reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, results, token,
    completed, priority, max_attempts, due_at, processing_started_at, started_at, idempotency_key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: log_picked
-- Writes one PICKED entry for each claimed event, in queue order. Relies on the primary key of events.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, at, created_at
)
SELECT
    event.id, event.event_id, event.bus, event.type, 'PICKED', 'PROCESSING', event.attempts, event.generation,
    event.fence, event.worker_id, event.updated_at, event.created_at
FROM json_each(:ids) AS claimed CROSS JOIN events AS event
WHERE event.id = claimed.value

-- name: log_published
-- Writes one PUBLISHED entry for each event of an id range, in order of id. While the event exists, the entry keeps its
-- event_id unique: fewer changes than events mean that one of them is known already. Relies on event_log_published.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, at, created_at, known, tags, metadata,
    parent_id
)
SELECT
    id, event_id, bus, type, 'PUBLISHED', 'PENDING', 0, 0, 0, created_at, created_at, 1, tags, metadata, parent_id
FROM events WHERE id BETWEEN :first AND :last ORDER BY id
ON CONFLICT DO NOTHING

-- name: read_log
-- Returns entries in commit order: a transaction gets its positions under the write lock, so a later commit has larger
-- ones. Walks the primary key of event_log.
SELECT {entry} FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT :limit

-- name: read_event_log
-- Returns the audit trail of one event. Relies on event_log_published and event_log_event.
SELECT {entry} FROM event_log WHERE position IN (
    SELECT position FROM event_log WHERE event_id = :event_id AND known = 1
    UNION ALL
    SELECT position FROM event_log WHERE id = :id AND action <> 'PUBLISHED'
) ORDER BY position

-- name: log_head
-- Returns the newest entry. Relies on the primary key of event_log.
SELECT max(position) FROM event_log

-- name: log_lag
-- Returns how many entries lie after a position. Walks the primary key of event_log.
SELECT count(*) FROM event_log WHERE position > ?

-- name: last_entry
-- Returns the last entry between two positions. Relies on the primary key of event_log.
SELECT max(position) FROM event_log WHERE position > :after AND position <= :until

-- name: last_position
-- Returns the largest position ever given, even if its entry was trimmed since.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event_log'), 0)

-- name: read_position
-- Returns the saved position of a log reader.
SELECT position FROM positions WHERE name = ?

-- name: list_archives
-- Returns the archives and their positions. Relies on the primary key of positions.
SELECT name, position FROM positions WHERE name >= 'archive:' AND name < 'archive;'

-- name: archived_until
-- Returns the smallest position of an archive, except one; without an archive, the largest number. Relies on the primary
-- key of positions.
SELECT coalesce(min(CAST(position AS INTEGER)), 9223372036854775807) FROM positions
WHERE name >= 'archive:' AND name < 'archive;' AND name <> ?

-- name: forget_position
-- Forgets the position of a log reader.
DELETE FROM positions WHERE name = ?

-- name: save_position
-- Saves the position of a log reader.
INSERT INTO positions (name, position, updated_at) VALUES (:name, :position, :now)
ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = excluded.updated_at
