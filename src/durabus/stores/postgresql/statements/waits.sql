-- Waits: results that wait for an event. The function meet_waits in migrations/0004_waking.sql meets them.

-- name: meet_found_waits
-- Lets stored events meet waits: see the function.
SELECT {schema}.meet_found_waits($1::bigint[], $2::text[], $3::text[])

-- name: stored_events
-- Returns events of a bus and type after an id, in any status, in the order of their ids. Walks events_id, the primary
-- key of dead_letters, and event_log_completed.
(SELECT {event} FROM {schema}.events WHERE bus = $1 AND type = $2 AND id > $3 ORDER BY id LIMIT $4)
UNION ALL
(SELECT {dead_letter} FROM {schema}.dead_letters WHERE bus = $1 AND type = $2 AND id > $3 ORDER BY id LIMIT $4)
UNION ALL
(SELECT {completed} FROM {schema}.event_log WHERE completed AND bus = $1 AND type = $2 AND id > $3 ORDER BY id LIMIT $4)
ORDER BY 1 LIMIT $4

-- name: note_waits
-- Notes new waits, for which the store must look once more. The wait of a claim that was lost may have left a note.
-- Relies on the primary key of unchecked_waits.
INSERT INTO {schema}.unchecked_waits (bus, id, handler_id, began)
SELECT bus, id, handler_id, pg_current_snapshot()
FROM unnest($1::text[], $2::bigint[], $3::text[]) AS given (bus, id, handler_id) ORDER BY bus, id, handler_id
ON CONFLICT (bus, id, handler_id) DO UPDATE SET began = excluded.began, horizon = NULL

-- name: waits_to_check
-- Returns the new waits of a bus that no publisher can miss any more, and forgets them. Skips those that another
-- transaction looks at. Relies on the primary keys of unchecked_waits and event_results.
WITH done AS (
    DELETE FROM {schema}.unchecked_waits AS gone USING (
        SELECT id, handler_id FROM {schema}.unchecked_waits
        WHERE bus = $1 AND horizon <= pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY id, handler_id LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) AS old WHERE gone.bus = $1 AND gone.id = old.id AND gone.handler_id = old.handler_id
    RETURNING gone.id, gone.handler_id, gone.began, gone.horizon
)
SELECT result.id, result.handler_id, result.value, done.began::text, done.horizon::text
FROM done JOIN {schema}.event_results AS result ON result.id = done.id AND result.handler_id = done.handler_id
WHERE result.status = 'WAITING' AND result.value IS NOT NULL

-- name: stored_unseen
-- Returns the ids of events of a bus and some types that were stored by transactions in $3, or from $4 on and below $5,
-- each with its transaction. Relies on published_position and published_xact.
SELECT id, xact::text::bigint FROM {schema}.published
WHERE tx = ANY ($3::text[]::xid8[]) AND xact = tx AND bus = $1 AND type = ANY ($2::text[])
UNION ALL
SELECT id, xact::text::bigint FROM {schema}.published
WHERE tx >= $4::text::xid8 AND tx < $5::text::xid8 AND xact = tx AND bus = $1 AND type = ANY ($2::text[])
UNION ALL
SELECT id, xact::text::bigint FROM {schema}.published
WHERE xact = ANY ($3::text[]::xid8[]) AND xact <> tx AND bus = $1 AND type = ANY ($2::text[])
UNION ALL
SELECT id, xact::text::bigint FROM {schema}.published
WHERE xact >= $4::text::xid8 AND xact < $5::text::xid8 AND xact <> tx AND bus = $1 AND type = ANY ($2::text[])

-- name: note_horizon
-- Notes for the new waits of a bus which transactions may have missed them: all that have a number by now. Relies on
-- the primary key of unchecked_waits.
UPDATE {schema}.unchecked_waits SET horizon = pg_snapshot_xmax(pg_current_snapshot())
WHERE bus = $1 AND horizon IS NULL
