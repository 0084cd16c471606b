-- The event log, and the positions of its readers.

-- name: append_entries
-- Writes the log entries of transitions that the lifecycle decided, in order. The last columns are set for COMPLETED
-- and CANCELLED only: then the row is the event, and get_event reads it.
INSERT INTO {schema}.event_log (
    tx, action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, worker_id, error,
    reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, results, token,
    completed, priority, max_attempts, due_at, processing_started_at, started_at, idempotency_key
)
SELECT
    (SELECT {schema}.log_transaction()), action, id, event_id::uuid, bus, type, status, to_timestamp(at),
    to_timestamp(created), attempt, generation, fence, worker_id, error, reason, to_timestamp(next_retry),
    execution_time_ms, status_code, tags, metadata, parent_id::uuid, payload, errors, results, token, completed,
    priority, max_attempts, to_timestamp(due), to_timestamp(picked), to_timestamp(started), idempotency_key
FROM unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::double precision[],
    $8::double precision[], $9::integer[], $10::integer[], $11::bigint[], $12::text[], $13::text[],
    $14::text[], $15::double precision[], $16::double precision[], $17::integer[], $18::text[], $19::text[],
    $20::text[], $21::text[], $22::text[], $23::text[], $24::text[], $25::boolean[], $26::integer[], $27::integer[],
    $28::double precision[], $29::double precision[], $30::double precision[], $31::text[]
) WITH ORDINALITY AS given (
    action, id, event_id, bus, type, status, at, created, attempt, generation, fence, worker_id, error, reason,
    next_retry, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, results, token, completed,
    priority, max_attempts, due, picked, started, idempotency_key, n
) ORDER BY n

-- name: read_log
-- Returns readable entries between two positions, in order: those of transactions below the oldest that still runs.
-- Walks published_position and event_log_position side by side.
SELECT {entry} FROM (
    SELECT {published_columns} FROM {schema}.published
    WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot())
    UNION ALL
    SELECT {log_columns} FROM {schema}.event_log
    WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot())
) AS log ORDER BY tx, position LIMIT $5

-- name: read_event_log
-- Returns the audit trail of one event. Relies on published_event and event_log_event.
SELECT {entry} FROM (
    SELECT {published_columns} FROM {schema}.published WHERE event_id = $2::text::uuid AND known
    UNION ALL
    SELECT {log_columns} FROM {schema}.event_log WHERE id = $1
) AS log ORDER BY tx, position

-- name: log_head
-- Returns the newest readable entry. Relies on published_position and event_log_position.
SELECT to_hex(tx::text::bigint) || '-' || to_hex(position) FROM (
    (SELECT tx, position FROM {schema}.published
     WHERE tx < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx DESC, position DESC LIMIT 1)
    UNION ALL
    (SELECT tx, position FROM {schema}.event_log
     WHERE tx < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx DESC, position DESC LIMIT 1)
) AS newest ORDER BY tx DESC, position DESC LIMIT 1

-- name: log_lag
-- Returns how many readable entries lie between two positions. Counts in published_position and event_log_position.
SELECT
    (SELECT count(*) FROM {schema}.published
     WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot()))
    + (SELECT count(*) FROM {schema}.event_log
     WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot()))

-- name: log_hold
-- Returns the transaction that holds committed entries back from readers, if the oldest entry has waited long enough:
-- the one that read_log waits for. Relies on published_position and event_log_position. Only members of pg_monitor see
-- when another user's transaction began; for other users the transaction is as old as the entry.
SELECT holder.pid, holder.application, coalesce(holder.age, held.waiting) AS age, held.waiting
FROM (
    SELECT date_part('epoch', {schema}.the_time($1) - min(at)) AS waiting FROM (
        (SELECT at FROM {schema}.published
         WHERE tx >= pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx, position LIMIT 1)
        UNION ALL
        (SELECT at FROM {schema}.event_log
         WHERE tx >= pg_snapshot_xmin(pg_current_snapshot()) ORDER BY tx, position LIMIT 1)
    ) AS entry
) AS held, (
    SELECT pid, coalesce(nullif(application_name, ''), backend_type, 'no application name') AS application,
        date_part('epoch', clock_timestamp() - xact_start) AS age
    FROM pg_stat_activity WHERE backend_xid = pg_snapshot_xmin(pg_current_snapshot())::xid
    UNION ALL
    SELECT NULL, gid, date_part('epoch', clock_timestamp() - prepared)
    FROM pg_prepared_xacts WHERE transaction = pg_snapshot_xmin(pg_current_snapshot())::xid
) AS holder
WHERE held.waiting >= $2
LIMIT 1

-- name: next_transaction
-- Returns a transaction number that no transaction has yet.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text

-- name: read_position
-- Returns the saved position of a log reader.
SELECT position FROM {schema}.positions WHERE name = $1

-- name: read_archives
-- Returns the archives with their positions, and a row 'trimmed' if any entry was ever trimmed. Relies on the primary
-- key of positions.
SELECT name, position FROM {schema}.positions WHERE (name >= 'archive:' AND name < 'archive;') OR name = 'trimmed'

-- name: forget_position
-- Forgets the position of a log reader.
DELETE FROM {schema}.positions WHERE name = $1

-- name: save_position
-- Saves the position of a log reader.
INSERT INTO {schema}.positions (name, position, updated_at) VALUES ($1, $2, to_timestamp($3))
ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = excluded.updated_at

-- name: notify
-- Notifies every listener that these buses may have events to claim.
SELECT pg_notify($1, bus) FROM unnest($2::text[]) AS bus
