-- Maintenance: finds and deletes old events and entries; reads the migrations and the objects of the schema.

-- name: old_completed
-- Returns COMPLETED and CANCELLED events of a bus that ended long enough ago and are in every archive, the oldest ids
-- first. Walks event_log_completed.
SELECT id FROM {schema}.event_log
WHERE bus = $1 AND completed AND at <= {schema}.the_time($2) - make_interval(secs => $3)
    AND (tx, position) <= (SELECT archived.tx, archived.number FROM {schema}.archived_until('') AS archived)
ORDER BY id LIMIT $4

-- name: trim_completed
-- Deletes COMPLETED and CANCELLED events: see the function in migrations/0002_publishing.sql.
SELECT coalesce(sum(events), 0)::bigint, coalesce(sum(entries), 0)::bigint FROM {schema}.trim_completed($1, $2)

-- name: trim_excess
-- Deletes COMPLETED and CANCELLED events of buses beyond the newest of each that are in every archive, the oldest ids
-- first. With a node it stops at the first event that ended less than $6 seconds ago and that another node waits for.
-- Walks event_log_completed.
-- With `bus = … ORDER BY id` the planner may walk the entries of all buses by their ids. So the bus is given as a range
-- of the index.
SELECT bus, events FROM {schema}.trim_completed(ARRAY(
    SELECT excess.id
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) AS given (bus, keep, most, node), LATERAL (
        SELECT oldest.id, bool_or(oldest.unread) OVER (ORDER BY oldest.id) AS stopped FROM (
            SELECT log.id,
                given.node IS NOT NULL AND log.at > {schema}.the_time($5) - make_interval(secs => $6)
                    AND strpos(log.metadata, $7) > 0 AND strpos(log.metadata, given.node) = 0 AS unread
            FROM {schema}.event_log AS log
            WHERE log.completed AND (log.bus, log.id) >= (given.bus, -9223372036854775808) AND (log.bus, log.id) <= (given.bus, (
                SELECT id FROM {schema}.event_log AS newest
                WHERE newest.completed AND (newest.bus, newest.id) >= (given.bus, -9223372036854775808)
                    AND (newest.bus, newest.id) <= (given.bus, 9223372036854775807)
                ORDER BY newest.bus DESC, newest.id DESC LIMIT 1 OFFSET given.keep
            )) AND (log.tx, log.position) <= (SELECT archived.tx, archived.number FROM {schema}.archived_until('') AS archived)
            ORDER BY log.bus, log.id LIMIT given.most
        ) AS oldest
    ) AS excess
    WHERE excess.stopped IS NOT TRUE
), '')

-- name: cut_log
-- Returns the ends of pieces of the log of a given size between two positions. Walks published_position and
-- event_log_position.
SELECT to_hex(tx::text::bigint) || '-' || to_hex(position) FROM (
    SELECT tx, position, row_number() OVER forward AS number, lead(position) OVER forward AS following
    FROM (
        SELECT tx, position FROM {schema}.published
        WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
            AND tx < pg_snapshot_xmin(pg_current_snapshot())
        UNION ALL
        SELECT tx, position FROM {schema}.event_log
        WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
            AND tx < pg_snapshot_xmin(pg_current_snapshot())
    ) AS log WINDOW forward AS (ORDER BY tx, position)
) AS numbered WHERE number % $5 = 0 OR following IS NULL ORDER BY number LIMIT $6

-- name: drop_log_partition
-- Drops the oldest log partition that is old enough: see the function in migrations/0002_publishing.sql.
SELECT {schema}.drop_log_partition($1, $2)

-- name: make_log_partitions
-- Makes the log partitions of the next days: see the function in migrations/0002_publishing.sql.
SELECT {schema}.make_log_partitions($1, $2)

-- name: forget_completed
-- Removes a COMPLETED or CANCELLED event; its entries stay in the log. Relies on event_log_event.
UPDATE {schema}.event_log SET completed = NULL WHERE id = $1 AND completed RETURNING id

-- name: forget_unknown_entries
-- Deletes the entries of unknown events up to a position and an instant. They must be in every archive but
-- $5. Relies on event_log_event and published_position.
WITH published AS (
    DELETE FROM {schema}.published
    WHERE (tx, position) <= ($1::text::xid8, $2::bigint) AND at <= {schema}.the_time($3) - make_interval(secs => $4)
        AND NOT known AND id = ANY ($6::bigint[]) AND (tx, position) <= (SELECT archived.tx, archived.number FROM {schema}.archived_until($5) AS archived)
    RETURNING 1
), others AS (
    DELETE FROM {schema}.event_log
    WHERE (tx, position) <= ($1::text::xid8, $2::bigint) AND at <= {schema}.the_time($3) - make_interval(secs => $4)
        AND id = ANY ($6::bigint[]) AND (tx, position) <= (SELECT archived.tx, archived.number FROM {schema}.archived_until($5) AS archived)
    RETURNING 1
), gone AS (
    SELECT 1 FROM published UNION ALL SELECT 1 FROM others
), marked AS (
    INSERT INTO {schema}.positions (name, position, updated_at)
    SELECT 'trimmed', '', clock_timestamp() FROM gone LIMIT 1 ON CONFLICT DO NOTHING
)
SELECT 1 FROM gone

-- name: forget_event_ids
-- Frees event_ids, so that they can be published again; the entries stay. Relies on published_event.
UPDATE {schema}.published SET known = false WHERE event_id = ANY ($1::text[]::uuid[]) AND known

-- name: forget_keys
-- Frees idempotency keys, so that they can be used again. Relies on the primary key of idempotency_keys.
DELETE FROM {schema}.idempotency_keys AS key USING unnest($1::text[], $2::text[], $3::bigint[]) AS gone (bus, name, id)
WHERE key.bus = gone.bus AND key.idempotency_key = gone.name AND key.id = gone.id

-- name: forget_live_events
-- Removes events from the queue. Relies on events_id.
DELETE FROM {schema}.events WHERE id = ANY ($1::bigint[])

-- name: applied_migrations
-- Returns the steps that were applied, in order.
SELECT number, name, checksum, date_part('epoch', applied_at) FROM {schema}.durabus_migrations ORDER BY number

-- name: create_bookkeeping
-- Makes the tables in which migrations note the applied steps and the objects that they made.
CREATE TABLE IF NOT EXISTS durabus_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS durabus_objects (
    kind text NOT NULL, name text NOT NULL, definition text NOT NULL, PRIMARY KEY (kind, name)
)

-- name: actual_objects
-- Returns every object of a schema with its definition, except log partitions and the tables of the migrations.
SELECT kind, name, definition FROM (
    SELECT
        CASE relation.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind,
        relation.relname::text AS name,
        CASE relation.relkind WHEN 'S' THEN '' ELSE (
            SELECT string_agg(format(
                '%s %s%s', attribute.attname, format_type(attribute.atttypid, attribute.atttypmod),
                CASE WHEN attribute.attnotnull THEN ' NOT NULL' ELSE '' END
            ), ', ' ORDER BY attribute.attnum)
            FROM pg_attribute AS attribute
            WHERE attribute.attrelid = relation.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
        ) END AS definition
    FROM pg_class AS relation
    WHERE relation.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        AND relation.relkind IN ('r', 'p', 'v', 'S') AND NOT relation.relispartition
        AND relation.relname NOT LIKE 'durabus\_%'
    UNION ALL
    SELECT 'index', relation.relname::text, replace(pg_get_indexdef(relation.oid), format('%I.', $1), '')
    FROM pg_class AS relation JOIN pg_index ON pg_index.indexrelid = relation.oid
    JOIN pg_class AS owner ON owner.oid = pg_index.indrelid
    WHERE relation.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        AND NOT owner.relispartition AND owner.relname NOT LIKE 'durabus\_%'
    UNION ALL
    SELECT 'function', function.proname::text,
        format('%s %s', pg_get_function_identity_arguments(function.oid), function.prosrc)
    FROM pg_proc AS function
    WHERE function.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
) AS object

-- name: changed_objects
-- Returns the objects that differ from those that the migrations noted. An added object has no expected definition.
SELECT coalesce(expected.kind, actual.kind), coalesce(expected.name, actual.name), expected.definition, actual.definition
FROM {schema}.durabus_objects AS expected FULL JOIN (
    {actual_objects}
) AS actual ON (actual.kind, actual.name) = (expected.kind, expected.name)
WHERE actual.definition IS DISTINCT FROM expected.definition
ORDER BY expected.kind = 'index', 1, 2

-- name: can_write
-- Returns whether this server accepts writes.
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')

-- name: installation
-- Returns the id of this installation of durabus.
SELECT id::text FROM {schema}.installation
