-- Publishing, and what later migrations use: the time, the position in the log, and the counts.
-- Each function sets the planner: a plan made while the queue was empty must also suit a long queue, and no scan may
-- depend on the backlog. Before PostgreSQL 18, a disabled plan without an alternative has a very high cost, and the
-- server compiles expensive plans (a second for each call): hence jit = off.

CREATE FUNCTION the_time(p_now double precision) RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$ SELECT coalesce(to_timestamp(p_now), clock_timestamp()) $$;

-- Returns the transaction number for a new log entry: that of this transaction, or of the newest finished one if that
-- is larger. A transaction that got its number early may continue what a later one has committed; with its own number,
-- its entries would stand before those they follow. Readers wait for all transactions below theirs, so no new entry can
-- stand before one that was read.
CREATE FUNCTION log_transaction() RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT greatest(
        pg_current_xact_id()::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1
    )::text::xid8
$$;

-- Adds the notes to the sums. If another transaction does so at the same time, this one does nothing.
CREATE FUNCTION add_up_counts() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || '.event_counts', 3)) THEN
        RETURN;
    END IF;
    WITH noted AS (
        DELETE FROM event_count_notes RETURNING *
    ), summed AS (
        SELECT bus, sum(pending) AS pending, sum(processing) AS processing, sum(completed) AS completed,
            sum(completed_with_errors) AS completed_with_errors, sum(failed) AS failed
        FROM noted GROUP BY bus
    )
    INSERT INTO event_counts AS known (bus, pending, processing, completed, completed_with_errors, failed)
    SELECT * FROM summed ORDER BY bus
    ON CONFLICT (bus) DO UPDATE SET
        pending = known.pending + excluded.pending,
        processing = known.processing + excluded.processing,
        completed = known.completed + excluded.completed,
        completed_with_errors = known.completed_with_errors + excluded.completed_with_errors,
        failed = known.failed + excluded.failed;
    DELETE FROM event_counts
    WHERE pending = 0 AND processing = 0 AND completed = 0 AND completed_with_errors = 0 AND failed = 0;
END
$$;

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
    v_count integer := cardinality(p_event_ids);
    v_stored integer;
    v_id bigint;
BEGIN
    now := date_part('epoch', v_now);
    ids := ARRAY(SELECT nextval('event_ids') FROM generate_series(1, v_count));
    IF p_keys IS NULL THEN
        INSERT INTO published (id, event_id, bus, type, at, parent_id, tags, metadata)
        SELECT given.id, given.event_id::uuid, given.bus, given.type, v_now, given.parent_id::uuid, given.tags,
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
                INSERT INTO published (id, event_id, bus, type, at, parent_id, tags, metadata)
                VALUES (
                    ids[i], p_event_ids[i]::uuid, p_buses[i], p_types[i], v_now, p_parent_ids[i]::uuid, p_tags[i],
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
        id, event_id, bus, type, status, lane, priority, attempts, generation, fence, max_attempts, has_results,
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
    INSERT INTO event_count_notes (bus, pending)
    SELECT given.bus, count(*) FROM unnest(ids, p_buses) AS given (id, bus) WHERE given.id IS NOT NULL GROUP BY given.bus;
    IF p_delays IS NOT NULL THEN
        dues := ARRAY(
            SELECT date_part('epoch', v_now + make_interval(secs => given.delay))
            FROM unnest(p_delays) WITH ORDINALITY AS given (delay, n) ORDER BY given.n
        );
    END IF;
    IF p_channel IS NOT NULL THEN
        PERFORM pg_notify(p_channel, given.bus) FROM (SELECT DISTINCT bus FROM unnest(p_buses) AS bus) AS given;
    END IF;
END
$$;
