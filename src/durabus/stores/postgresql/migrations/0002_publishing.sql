-- Functions that publish, keep ordering keys in order, register, and keep or trim the log.
-- 0001 says why each function sets options of the planner.

-- ===== Publishing =====

-- Stores events in the given order. An event whose id or key is known is not stored: its place in `ids` is NULL, and
-- `known` has the id of the stored event. Relies on published_event and the primary key of idempotency_keys: a second
-- publish of the same event waits there for the first one's commit.
CREATE FUNCTION add_events(
    p_now double precision, p_channel text, p_event_ids text[], p_buses text[], p_types text[], p_payloads text[],
    p_metadata text[], p_tags text[], p_priorities integer[], p_delays double precision[], p_max_attempts integer[],
    p_parent_ids text[], p_keys text[],
    OUT now double precision, OUT ids bigint[], OUT known bigint[], OUT dues double precision[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := the_time(p_now);
    v_tx xid8 := log_transaction();
    v_count integer := cardinality(p_event_ids);
    v_stored integer;
    v_id bigint;
BEGIN
    now := date_part('epoch', v_now);
    ids := ARRAY(SELECT nextval('event_ids') FROM generate_series(1, v_count));
    IF p_keys IS NULL THEN
        INSERT INTO published (tx, id, event_id, bus, type, at, parent_id, tags, metadata)
        SELECT v_tx, given.id, given.event_id::uuid, given.bus, given.type, v_now, given.parent_id::uuid, given.tags,
            given.metadata
        FROM unnest(ids, p_event_ids, p_buses, p_types, p_parent_ids, p_tags, p_metadata)
            AS given (id, event_id, bus, type, parent_id, tags, metadata)
        ON CONFLICT (event_id) WHERE published.known DO NOTHING;
        GET DIAGNOSTICS v_stored = ROW_COUNT;
        IF v_stored < v_count THEN
            SELECT array_agg(CASE WHEN stored.id = given.id THEN given.id END ORDER BY given.n),
                array_agg(CASE WHEN stored.id <> given.id THEN stored.id END ORDER BY given.n)
            INTO ids, known
            FROM unnest(ids, p_event_ids) WITH ORDINALITY AS given (id, event_id, n)
            JOIN published AS stored ON stored.event_id = given.event_id::uuid AND stored.known;
            IF cardinality(ids) IS DISTINCT FROM v_count THEN
                RAISE EXCEPTION 'an event was removed while it was published' USING ERRCODE = '40001';
            END IF;
        END IF;
    ELSE
        v_stored := 0;
        known := array_fill(NULL::bigint, ARRAY[v_count]);
        FOR i IN 1 .. v_count LOOP
            SELECT stored.id INTO v_id FROM published AS stored
            WHERE stored.event_id = p_event_ids[i]::uuid AND stored.known;
            IF v_id IS NULL AND p_keys[i] IS NOT NULL THEN
                INSERT INTO idempotency_keys (bus, idempotency_key, id) VALUES (p_buses[i], p_keys[i], ids[i])
                ON CONFLICT DO NOTHING;
                IF NOT FOUND THEN
                    SELECT key.id INTO v_id FROM idempotency_keys AS key
                    WHERE key.bus = p_buses[i] AND key.idempotency_key = p_keys[i];
                    IF v_id IS NULL THEN
                        RAISE EXCEPTION 'an event was removed while it was published' USING ERRCODE = '40001';
                    END IF;
                END IF;
            END IF;
            IF v_id IS NULL THEN
                INSERT INTO published (tx, id, event_id, bus, type, at, parent_id, tags, metadata)
                VALUES (
                    v_tx, ids[i], p_event_ids[i]::uuid, p_buses[i], p_types[i], v_now, p_parent_ids[i]::uuid, p_tags[i],
                    p_metadata[i]
                ) ON CONFLICT (event_id) WHERE published.known DO NOTHING;
                IF NOT FOUND THEN
                    RAISE EXCEPTION 'an event was published twice at the same time' USING ERRCODE = '40001';
                END IF;
                v_stored := v_stored + 1;
            ELSE
                known[i] := v_id;
                ids[i] := NULL;
            END IF;
        END LOOP;
    END IF;
    IF v_stored = 0 THEN
        RETURN;
    END IF;
    INSERT INTO events (
        id, event_id, bus, type, status, queue_part, priority, attempts, generation, fence, max_attempts, has_results,
        created_at, updated_at, due_at, parent_id, idempotency_key, tags, metadata, payload
    )
    SELECT
        given.id, given.event_id::uuid, given.bus, given.type, 'PENDING',
        CASE WHEN given.delay > 0 THEN 0 WHEN given.priority <> 0 THEN 2 ELSE 1 END,
        coalesce(given.priority, 0), 0, 0, 0, given.max_attempts, false, v_now, v_now,
        v_now + make_interval(secs => coalesce(given.delay, 0)), given.parent_id::uuid, given.key,
        CASE WHEN given.tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(given.tags::json)) END,
        given.metadata, given.payload
    FROM unnest(
        ids, p_event_ids, p_buses, p_types, p_payloads, p_metadata, p_tags, p_priorities, p_delays, p_max_attempts,
        p_parent_ids, p_keys
    ) AS given (
        id, event_id, bus, type, payload, metadata, tags, priority, delay, max_attempts, parent_id, key
    )
    WHERE given.id IS NOT NULL;
    PERFORM meet_waits(ids) WHERE EXISTS (SELECT FROM event_results AS r WHERE r.status = 'WAITING');
    INSERT INTO event_count_notes (bus, pending)
    SELECT given.bus, count(*) FROM unnest(ids, p_buses) AS given (id, bus) WHERE given.id IS NOT NULL GROUP BY given.bus;
    IF p_delays IS NOT NULL THEN
        dues := ARRAY(
            SELECT date_part('epoch', v_now + make_interval(secs => given.delay))
            FROM unnest(p_delays) WITH ORDINALITY AS given (delay, n) ORDER BY given.n
        );
    END IF;
    PERFORM pg_notify(p_channel, given.bus) FROM (SELECT DISTINCT bus FROM unnest(p_buses) AS bus) AS given
    WHERE p_channel IS NOT NULL;
END
$$;

-- ===== Ordering keys =====

-- Events of one ordering key run one after the other. A claim that finds an event which is not the first of its key
-- defers it (queue_part 3). When the event before it ends or is set back, a trigger brings the first event of the key
-- back (queue_part 2: it was due). Both hold an advisory lock on the key until their transaction ends, so a trigger
-- cannot miss an event that is being deferred. A claim never waits for that lock: it skips the key. Events without a
-- key cost one look into an empty index.

-- Returns the advisory lock of a key. It uses the search_path of its callers: with its own it could not be inlined.
CREATE FUNCTION ordering_key_lock(p_bus text, p_key text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(current_schema() || '.' || length(p_bus)::text || '.' || p_bus || p_key, 7)
$$;

-- Of locked events that a claim found, returns those that may be claimed, in their order. Defers events that wait
-- behind another event of their key, together. Skips a key whose lock another transaction holds. A statement of its own
-- reads the first event of each key: it must see all commits up to the lock on the key. Relies on events_ordering_key.
CREATE FUNCTION first_of_ordering_keys(p_bus text, p_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off
SET enable_sort = on
AS $$
DECLARE
    v_keys text[];
    v_may bigint[];
    v_deferred bigint[];
BEGIN
    v_keys := ARRAY(
        SELECT DISTINCT e.ordering_key FROM events AS e WHERE e.id = ANY (p_ids) AND e.ordering_key IS NOT NULL
    );
    v_keys := ARRAY(SELECT key FROM unnest(v_keys) AS key WHERE pg_try_advisory_xact_lock(ordering_key_lock(p_bus, key)));
    WITH firsts AS (
        SELECT key, CASE WHEN NOT EXISTS (
            SELECT FROM events AS e WHERE e.bus = p_bus AND e.ordering_key = key AND e.status = 'PROCESSING'
        ) THEN (
            SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.ordering_key = key AND e.status = 'PENDING'
            ORDER BY e.id LIMIT 1
        ) ELSE 0 END AS id
        FROM unnest(v_keys) AS key
    )
    SELECT
        array_agg(given.id ORDER BY given.n) FILTER (WHERE e.ordering_key IS NULL OR given.id = firsts.id),
        array_agg(given.id) FILTER (WHERE given.id <> firsts.id)
    INTO v_may, v_deferred
    FROM unnest(p_ids) WITH ORDINALITY AS given (id, n)
    JOIN events AS e ON e.id = given.id AND e.id = ANY (p_ids)
    LEFT JOIN firsts ON firsts.key = e.ordering_key;
    IF v_deferred IS NOT NULL THEN
        UPDATE events AS e SET queue_part = 3 WHERE e.id = ANY (v_deferred);
    END IF;
    RETURN coalesce(v_may, '{}');
END
$$;

CREATE FUNCTION ordering_key_moves_on() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_key text := OLD.ordering_key;
BEGIN
    PERFORM pg_advisory_xact_lock(ordering_key_lock(OLD.bus, v_key));
    UPDATE events AS e SET queue_part = 2 WHERE e.queue_part = 3 AND e.id = (
        SELECT f.id FROM events AS f
        WHERE f.bus = OLD.bus AND f.ordering_key = v_key AND f.status = 'PENDING'
        ORDER BY f.id LIMIT 1
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER events_ordering_key_left AFTER DELETE ON events
FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION ordering_key_moves_on();
-- Only a statement that sets due_at returns an event to the queue.
CREATE TRIGGER events_ordering_key_returned AFTER UPDATE OF due_at ON events
FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION ordering_key_moves_on();

-- ===== Log partitions =====

-- Makes the log partitions of the next days. If all exist, it only looks them up. Attaching a table does not wait for
-- writers of other partitions, as creating it in place would; and it gives up after a timeout rather than block them.
CREATE FUNCTION make_log_partitions(p_now double precision, p_days integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
SET lock_timeout = '2s'
AS $$
DECLARE
    v_today date := (the_time(p_now) AT TIME ZONE 'UTC')::date;
    v_day date;
    v_name text;
    v_made integer := 0;
BEGIN
    FOR v_day IN SELECT v_today + n FROM generate_series(0, p_days) AS n LOOP
        v_name := 'event_log_' || to_char(v_day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || v_name) IS NOT NULL;
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '.event_log', 1));
        CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || v_name) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %I (LIKE event_log INCLUDING DEFAULTS)', v_name);
            EXECUTE format(
                'ALTER TABLE event_log ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                v_name, v_day::text || ' 00:00:00+00', (v_day + 1)::text || ' 00:00:00+00'
            );
            v_made := v_made + 1;
        EXCEPTION WHEN check_violation OR lock_not_available OR duplicate_table THEN
            NULL; -- another process made it, or event_log_rest has entries of that day, which are only slower to drop
        END;
    END LOOP;
    RETURN v_made;
END
$$;

-- Returns the smallest position of an archive of the log, except one; without an archive, the largest position. No trim
-- passes it. Relies on the primary key of positions.
CREATE FUNCTION archived_until(p_ignoring text) RETURNS TABLE (tx xid8, number bigint)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$
    SELECT archive.tx, archive.number FROM (
        SELECT
            ('x' || lpad(split_part(position, '-', 1), 16, '0'))::bit(64)::bigint::text::xid8 AS tx,
            ('x' || lpad(split_part(position, '-', 2), 16, '0'))::bit(64)::bigint AS number
        FROM positions WHERE name >= 'archive:' AND name < 'archive;' AND name <> p_ignoring
        UNION ALL
        SELECT '9223372036854775807'::xid8, 9223372036854775807
    ) AS archive ORDER BY archive.tx, archive.number LIMIT 1
$$;

-- Drops the oldest log partition whose day ended before an instant, with its COMPLETED and CANCELLED events and their
-- names, keys and results. Entries of other events move to event_log_rest. Returns the name of the partition, or NULL
-- if there is none, or if an archive lacks an entry of it.
-- Waits at most two seconds for other users of the log, because all later users wait behind it.
CREATE FUNCTION drop_log_partition(p_now double precision, p_older_than double precision) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET lock_timeout = '2s'
AS $$
DECLARE
    v_before date := ((the_time(p_now) - make_interval(secs => p_older_than)) AT TIME ZONE 'UTC')::date;
    v_day text;
    v_missing boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '.event_log', 1));
    SELECT day.relname INTO v_day
    FROM pg_inherits JOIN pg_class AS day ON day.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent = 'event_log'::regclass AND day.relname ~ '^event_log_[0-9]{8}$'
        AND to_date(right(day.relname, 8), 'YYYYMMDD') < v_before
    ORDER BY day.relname LIMIT 1;
    IF v_day IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM %I AS entry, archived_until('''') AS archived '
        'WHERE (entry.tx, entry.position) > (archived.tx, archived.number))', v_day
    ) INTO v_missing;
    IF v_missing THEN
        RETURN NULL;
    END IF;
    EXECUTE format('ALTER TABLE event_log DETACH PARTITION %I', v_day);
    EXECUTE format('CREATE TEMPORARY TABLE ended ON COMMIT DROP AS SELECT id, event_id, bus, status FROM %I WHERE completed', v_day);
    EXECUTE format(
        'INSERT INTO event_log SELECT * FROM %I AS entry '
        'WHERE NOT EXISTS (SELECT FROM pg_temp.ended WHERE ended.id = entry.id) AND ('
        'EXISTS (SELECT FROM events WHERE events.id = entry.id) '
        'OR EXISTS (SELECT FROM dead_letters WHERE dead_letters.id = entry.id) '
        'OR EXISTS (SELECT FROM event_log AS later WHERE later.id = entry.id AND later.completed)) ORDER BY position',
        v_day
    );
    EXECUTE format('DROP TABLE %I', v_day);
    DELETE FROM event_log AS entry USING pg_temp.ended WHERE entry.id = ended.id;
    DELETE FROM published AS entry USING pg_temp.ended WHERE entry.event_id = ended.event_id AND entry.known;
    DELETE FROM idempotency_keys AS key USING pg_temp.ended WHERE key.id = ended.id;
    DELETE FROM event_results AS result USING pg_temp.ended WHERE result.id = ended.id;
    INSERT INTO event_count_notes (bus, completed, cancelled)
    SELECT bus, -count(*) FILTER (WHERE status = 'COMPLETED'), -count(*) FILTER (WHERE status = 'CANCELLED')
    FROM pg_temp.ended GROUP BY bus;
    INSERT INTO positions (name, position, updated_at) VALUES ('trimmed', '', clock_timestamp()) ON CONFLICT DO NOTHING;
    DROP TABLE pg_temp.ended;
    RETURN v_day;
END
$$;

-- ===== Registering and trimming: each in one round trip, because a short-lived bus cannot afford several =====

-- Registers a bus, and exactly these handlers of a node for it; a stopped bus becomes active again. Locks the row of
-- the bus first, so that nodes of one bus register one after the other. Relies on the primary keys of event_buses and
-- event_handlers.
CREATE FUNCTION register_handlers(
    p_now double precision, p_bus text, p_node text, p_handler_ids text[], p_patterns text[],
    p_kept_for double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := the_time(p_now);
    v_new boolean;
    v_changed boolean;
BEGIN
    INSERT INTO event_buses (bus, created_at, last_seen_at, revision)
    VALUES (p_bus, v_now, v_now, nextval('handler_revisions'))
    ON CONFLICT (bus) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = NULL
    RETURNING xmax = 0 INTO v_new;
    DELETE FROM event_handlers AS h WHERE h.bus = p_bus
        AND (h.kept_until <= v_now OR (h.node = p_node AND h.handler_id <> ALL (p_handler_ids)));
    v_changed := FOUND OR EXISTS (
        SELECT FROM unnest(p_handler_ids, p_patterns) AS wanted (handler_id, pattern)
        WHERE NOT EXISTS (
            SELECT FROM event_handlers AS h
            WHERE h.bus = p_bus AND h.handler_id = wanted.handler_id AND h.node = p_node AND h.pattern = wanted.pattern
        )
    );
    INSERT INTO event_handlers (bus, handler_id, node, pattern, created_at, last_seen_at, kept_until)
    SELECT p_bus, wanted.handler_id, p_node, wanted.pattern, v_now, v_now, v_now + make_interval(secs => p_kept_for)
    FROM unnest(p_handler_ids, p_patterns) AS wanted (handler_id, pattern) ORDER BY wanted.handler_id
    ON CONFLICT (bus, handler_id, node) DO UPDATE
    SET pattern = excluded.pattern, last_seen_at = excluded.last_seen_at, kept_until = excluded.kept_until;
    -- The bus has another list of handlers now: give it a revision that no list had before.
    IF v_changed AND NOT v_new THEN
        UPDATE event_buses SET revision = nextval('handler_revisions') WHERE bus = p_bus;
    END IF;
END
$$;

-- Deletes given COMPLETED and CANCELLED events, with their entries, ids, keys and results. Their entries must be in
-- every archive, except one. Returns the number of deleted events and entries of each bus. A second trim of the same
-- events waits for the first one. Relies on event_log_event, published_event, and the primary keys of positions,
-- idempotency_keys and event_results.
CREATE FUNCTION trim_completed(p_ids bigint[], p_ignoring text) RETURNS TABLE (bus text, events bigint, entries bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_tx xid8;
    v_number bigint;
BEGIN
    SELECT archived.tx, archived.number INTO v_tx, v_number FROM archived_until(p_ignoring) AS archived;
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT e.id, e.event_id, e.bus, e.idempotency_key, e.status FROM event_log AS e
        WHERE e.id = ANY (p_ids) AND e.completed AND (e.tx, e.position) <= (v_tx, v_number)
        ORDER BY e.id FOR UPDATE
    ), logged AS (
        DELETE FROM event_log AS e WHERE e.id = ANY (ARRAY(SELECT g.id FROM gone AS g)) RETURNING e.bus
    ), named AS (
        DELETE FROM published AS p WHERE p.event_id = ANY (ARRAY(SELECT g.event_id FROM gone AS g)) AND p.known
        RETURNING p.bus
    ), keys AS (
        DELETE FROM idempotency_keys AS k USING gone AS g
        WHERE k.bus = g.bus AND k.idempotency_key = g.idempotency_key AND k.id = g.id
    ), results AS (
        DELETE FROM event_results AS r WHERE r.id = ANY (ARRAY(SELECT g.id FROM gone AS g))
    ), counted AS (
        SELECT g.bus, count(*) AS events, count(*) FILTER (WHERE g.status = 'CANCELLED') AS cancelled
        FROM gone AS g GROUP BY g.bus
    ), noted AS (
        INSERT INTO event_count_notes (bus, completed, cancelled)
        SELECT c.bus, c.cancelled - c.events, -c.cancelled FROM counted AS c
    ), marked AS (
        INSERT INTO positions (name, position, updated_at)
        SELECT 'trimmed', '', clock_timestamp() FROM counted LIMIT 1 ON CONFLICT DO NOTHING
    ), unlogged AS (
        SELECT l.bus, count(*) AS entries FROM (SELECT bus FROM logged UNION ALL SELECT bus FROM named) AS l GROUP BY l.bus
    )
    SELECT c.bus, c.events, coalesce(u.entries, 0) FROM counted AS c LEFT JOIN unlogged AS u ON u.bus = c.bus;
END
$$;
