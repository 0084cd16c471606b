-- Events: published, fetched, found and counted.

-- name: add_event
-- Does what the function add_events does, for one event without a key, in one statement. Returns no row if its event_id
-- is known. Relies on published_event. The new event meets waits as the last thing: meet_waits sees what this statement
-- has stored.
WITH named AS (
    INSERT INTO {schema}.published (tx, id, event_id, bus, type, at, parent_id, tags, metadata)
    VALUES (
        {schema}.log_transaction(), nextval('{schema}.event_ids'), $2::text::uuid, $3, $4, {schema}.the_time($1),
        $10::text::uuid, $7, $6
    )
    ON CONFLICT (event_id) WHERE published.known DO NOTHING
    RETURNING id, at
), stored AS (
    INSERT INTO {schema}.events (
        id, event_id, bus, type, status, queue_part, priority, attempts, generation, fence, max_attempts, has_results,
        created_at, updated_at, due_at, parent_id, tags, metadata, payload
    )
    SELECT
        id, $2::text::uuid, $3, $4, 'PENDING', CASE WHEN $9::double precision > 0 THEN 0 WHEN $8::integer <> 0 THEN 2 ELSE 1 END,
        $8, 0, 0, 0, $11, false, at, at, at + make_interval(secs => $9), $10::text::uuid,
        CASE WHEN $7 IS NOT NULL THEN ARRAY(SELECT json_array_elements_text($7::json)) END, $6, $5
    FROM named
    RETURNING id
), counted AS (
    INSERT INTO {schema}.event_count_notes (bus, pending) SELECT $3, 1 FROM named
)
SELECT date_part('epoch', at), id, date_part('epoch', at + make_interval(secs => $9)),
    CASE
        WHEN EXISTS (SELECT FROM {schema}.event_results WHERE event_results.status = 'WAITING')
        THEN {schema}.meet_waits(ARRAY(SELECT id FROM stored))
    END
FROM named

-- name: add_events
-- Stores a batch: see the function in migrations/0002_publishing.sql.
SELECT now, ids, known, dues FROM {schema}.add_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: get_event_ids
-- Returns the ids of events by their event_ids. Relies on published_event.
SELECT id, event_id::text FROM {schema}.published WHERE event_id = ANY ($1::text[]::uuid[]) AND known

-- name: get_events
-- Returns events in any status by id or event_id, read at one instant. Relies on events_id, the primary key of
-- dead_letters, event_log_event and published_event. A COMPLETED or CANCELLED event comes from its last log entry.
WITH wanted AS MATERIALIZED (
    SELECT unnest($1::bigint[]) AS id
    UNION
    SELECT id FROM {schema}.published WHERE event_id = ANY ($2::text[]::uuid[]) AND known
)
SELECT {event} FROM {schema}.events WHERE id = ANY (ARRAY(SELECT id FROM wanted))
UNION ALL
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id = ANY (ARRAY(SELECT id FROM wanted))
UNION ALL
SELECT {completed} FROM {schema}.event_log WHERE id = ANY (ARRAY(SELECT id FROM wanted)) AND completed

-- name: get_states
-- Returns live events with the tokens of their claims, and locks them in order of id. Relies on events_id.
SELECT {event}, token, lock_key, has_results FROM {schema}.events WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE

-- name: find_live
-- Returns PENDING and PROCESSING events below an id. events.py adds the other conditions, the order and the limit.
-- Walks events_id downwards, or uses events_parent.
SELECT {event} FROM {schema}.events WHERE id < $1

-- name: find_completed
-- Returns COMPLETED and CANCELLED events below an id. events.py adds to it as to find_live. Walks event_log_completed
-- for one bus, event_log_event for all, or uses event_log_parent.
SELECT {completed} FROM {schema}.event_log WHERE completed AND id < $1

-- name: find_dead
-- Returns dead letters below an id. events.py adds to it as to find_live. Walks the primary key of dead_letters, or
-- uses dead_letters_parent.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id < $1

-- name: lock_events
-- Locks live events until the transaction ends, in order of id, as every statement does that locks several events.
-- Relies on events_id.
SELECT id FROM {schema}.events WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE

-- name: counts
-- Returns how many events there are in each status: the sums plus the notes since then. Relies on the primary key of
-- event_counts; the notes are few.
SELECT
    coalesce(sum(pending), 0)::bigint, coalesce(sum(processing), 0)::bigint, coalesce(sum(completed), 0)::bigint,
    coalesce(sum(completed_with_errors), 0)::bigint, coalesce(sum(failed), 0)::bigint,
    coalesce(sum(cancelled), 0)::bigint
FROM (
    SELECT pending, processing, completed, completed_with_errors, failed, cancelled FROM {schema}.event_counts
    WHERE $1::text IS NULL OR bus = $1
    UNION ALL
    SELECT pending, processing, completed, completed_with_errors, failed, cancelled FROM {schema}.event_count_notes
    WHERE $1::text IS NULL OR bus = $1
) AS noted

-- name: note_counts
-- Notes what this transaction changed in the numbers of events, by bus.
INSERT INTO {schema}.event_count_notes (
    bus, pending, processing, completed, completed_with_errors, failed, cancelled
)
SELECT * FROM unnest(
    $1::text[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::integer[], $7::integer[]
)

-- name: add_up_counts
-- Adds the notes of many transactions to the sums: see the function in migrations/0001_tables.sql.
SELECT {schema}.add_up_counts()

-- name: count_dead
-- Returns the number of dead letters, of one bus or of all, as counts does.
SELECT coalesce(sum(dead), 0)::bigint FROM (
    SELECT completed_with_errors + failed AS dead FROM {schema}.event_counts WHERE $1::text IS NULL OR bus = $1
    UNION ALL
    SELECT completed_with_errors + failed FROM {schema}.event_count_notes WHERE $1::text IS NULL OR bus = $1
) AS noted

-- name: completed_until
-- Returns COMPLETED and CANCELLED events whose last entry lies at or before a position and an instant, oldest first:
-- nothing follows such an entry. The entry must be in every archive but $5. Walks event_log_position.
SELECT id FROM {schema}.event_log
WHERE (tx, position) <= ($1::text::xid8, $2::bigint) AND completed
    AND at <= {schema}.the_time($3) - make_interval(secs => $4)
    AND (tx, position) <= (SELECT archived.tx, archived.number FROM {schema}.archived_until($5) AS archived)
ORDER BY tx, position LIMIT $6

-- name: unknown_until
-- Returns ids of events that are neither live, nor dead letters, nor in the history, but have entries at or before
-- a position and an instant, oldest first. These entries must be in every archive but $5. Walks published_position and
-- event_log_position.
SELECT entry.id FROM (
    SELECT id, tx, position, at FROM {schema}.published
    WHERE (tx, position) <= ($1::text::xid8, $2::bigint)
    UNION ALL
    SELECT id, tx, position, at FROM {schema}.event_log WHERE (tx, position) <= ($1::text::xid8, $2::bigint)
) AS entry
WHERE entry.at <= {schema}.the_time($3) - make_interval(secs => $4)
  AND (entry.tx, entry.position) <= (SELECT archived.tx, archived.number FROM {schema}.archived_until($5) AS archived)
  AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.id = entry.id)
  AND NOT EXISTS (SELECT FROM {schema}.dead_letters WHERE dead_letters.id = entry.id)
  AND NOT EXISTS (SELECT FROM {schema}.event_log AS ended WHERE ended.id = entry.id AND ended.completed)
GROUP BY entry.id ORDER BY min(ARRAY[tx::text::bigint, position]) LIMIT $6
