-- The hot paths, each one round trip. They are translations of the kernel for the common case; what is not common they
-- leave alone and say so, and the kernel itself decides (states.py).
-- The planner settings belong to the functions: a plan that was made while the queue was empty must also be right when
-- it is long, and no scan may depend on how much waits.

CREATE FUNCTION the_time(p_now double precision) RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$ SELECT coalesce(to_timestamp(p_now), clock_timestamp()) $$;

-- Where in the log an entry belongs that is written now: the number of this transaction, or of the newest that is over,
-- if that is larger. A transaction that got its number early may go on with what a later one left and committed; by its
-- own number its entries would stand before those they follow. Readers wait for transactions below theirs, so nothing
-- that is still to come can stand before what they read.
CREATE FUNCTION log_transaction() RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT greatest(
        pg_current_xact_id()::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1
    )::text::xid8
$$;

-- Adds up what was noted. One at a time is enough: who comes second leaves it to the first.
CREATE FUNCTION add_up_counts() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
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

-- Stores events in the order given. An id or key that is known stores nothing: its place in `ids` is empty, and
-- `known` names the event that stands for it. Relies on published_event and the primary key of idempotency_keys: who
-- publishes the same at the same time waits there for the first one's commit.
CREATE FUNCTION add_events(
    p_now double precision, p_channel text, p_event_ids text[], p_buses text[], p_types text[], p_payloads text[],
    p_metadata text[], p_tags text[], p_priorities integer[], p_delays double precision[], p_max_attempts integer[],
    p_parent_ids text[], p_keys text[],
    OUT now double precision, OUT ids bigint[], OUT known bigint[], OUT dues double precision[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
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

-- The first events of a lane of a bus that carry one of some tags, locked. A rare tag is looked up in events_tags, a
-- frequent one is soon met on a walk along events_fresh or events_returned: the planner knows which.
CREATE FUNCTION next_tagged_events(p_bus text, p_lane integer, p_tags text[], p_limit integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
AS $$
BEGIN
    IF p_lane = 1 THEN
        RETURN ARRAY(
            SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.lane = 1 AND e.tags IS NOT NULL AND e.tags && p_tags
            ORDER BY -e.priority, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
        );
    END IF;
    RETURN ARRAY(
        SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.lane = 2 AND e.tags IS NOT NULL AND e.tags && p_tags
        ORDER BY -e.priority, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    );
END
$$;

-- Claims the next events of a bus. Instead of events it answers one row with id 0 and the reason as its type, if
-- somebody's lease is over (`expired`), the token holds claims already (`held`), or the lock was left by a holder
-- whose event must be taken from it first (`lock`): those are for states.py.
-- Walks events_returned and events_fresh, the latter from p_floor on, and stops at the limit. SKIP LOCKED: racing
-- callers share the queue. The ids are an array before the UPDATE begins, so it cannot take more than were locked.
CREATE FUNCTION claim_next_events(
    p_now double precision, p_bus text, p_worker_id text, p_token text, p_limit integer, p_lease double precision,
    p_lock_key text, p_tags text[], p_floor bigint, p_expired boolean, p_thorough boolean
) RETURNS TABLE (
    id bigint, event_id text, type text, payload text, rest text, attempts integer, generation integer, fence bigint,
    has_results boolean, created double precision, due double precision, picked double precision,
    expires double precision, revision text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := the_time(p_now);
    v_expires timestamptz := v_now + make_interval(secs => p_lease);
    v_revision text;
    v_lock locks;
    v_fresh bigint[];
    v_ids bigint[];
BEGIN
    SELECT b.revision::text INTO v_revision FROM event_buses AS b WHERE b.bus = p_bus;
    IF EXISTS (SELECT FROM events AS e WHERE e.token = p_token AND e.status = 'PROCESSING') THEN
        RETURN QUERY SELECT 0::bigint, NULL, 'held', NULL, NULL, NULL::integer, NULL::integer, NULL::bigint,
            NULL::boolean, NULL::float8, NULL::float8, NULL::float8, NULL::float8, v_revision;
        RETURN;
    END IF;
    IF p_thorough THEN
        IF p_expired AND EXISTS (
            SELECT FROM events AS e WHERE e.bus = p_bus AND e.status = 'PROCESSING' AND e.lease_expires_at <= v_now
        ) THEN
            RETURN QUERY SELECT 0::bigint, NULL, 'expired', NULL, NULL, NULL::integer, NULL::integer, NULL::bigint,
                NULL::boolean, NULL::float8, NULL::float8, NULL::float8, NULL::float8, v_revision;
            RETURN;
        END IF;
        IF EXISTS (
            SELECT FROM events AS e
            WHERE e.bus = p_bus AND e.lane = 0 AND e.status = 'PENDING' AND e.due_at <= v_now
        ) THEN
            UPDATE events AS e SET lane = 2 WHERE e.id = ANY (ARRAY(
                SELECT d.id FROM events AS d
                WHERE d.bus = p_bus AND d.lane = 0 AND d.status = 'PENDING' AND d.due_at <= v_now
                ORDER BY d.due_at, d.id LIMIT 10000 FOR UPDATE SKIP LOCKED
            ));
        END IF;
    END IF;
    IF p_lock_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(p_lock_key, 0));
        SELECT * INTO v_lock FROM locks AS l WHERE l.key = p_lock_key;
        IF v_lock.token IS NOT NULL AND v_lock.token <> p_token AND v_lock.expires_at > v_now THEN
            RETURN;
        END IF;
    END IF;
    IF p_tags IS NOT NULL THEN
        v_ids := next_tagged_events(p_bus, 2, p_tags, p_limit);
        v_fresh := next_tagged_events(p_bus, 1, p_tags, p_limit);
    ELSE
        v_ids := ARRAY(
            SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.lane = 2
            ORDER BY -e.priority, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
        );
        v_fresh := ARRAY(
            SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.lane = 1 AND (-e.priority, e.id) > (0, p_floor)
            ORDER BY -e.priority, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF cardinality(v_ids) = 0 THEN
        v_ids := v_fresh;
    ELSIF cardinality(v_fresh) > 0 THEN
        v_ids := ARRAY(
            SELECT e.id FROM events AS e WHERE e.id = ANY (v_ids || v_fresh)
            ORDER BY -e.priority, e.id LIMIT p_limit
        );
    END IF;
    IF cardinality(v_ids) < p_limit AND NOT p_thorough THEN
        RETURN QUERY SELECT * FROM claim_next_events(
            p_now, p_bus, p_worker_id, p_token, p_limit, p_lease, p_lock_key, p_tags, 0, p_expired, true
        );
        RETURN;
    END IF;
    IF cardinality(v_ids) = 0 THEN
        RETURN;
    END IF;
    IF v_lock.token IS NOT NULL AND v_lock.token <> p_token THEN
        RETURN QUERY SELECT 0::bigint, NULL, 'lock', NULL, NULL, NULL::integer, NULL::integer, NULL::bigint,
            NULL::boolean, NULL::float8, NULL::float8, NULL::float8, NULL::float8, v_revision;
        RETURN;
    END IF;
    IF p_lock_key IS NOT NULL THEN
        INSERT INTO locks AS l (key, fence, worker_id, token, expires_at)
        VALUES (p_lock_key, nextval('lock_fences'), p_worker_id, p_token, v_expires)
        ON CONFLICT (key) DO UPDATE SET
            fence = CASE WHEN l.token = excluded.token THEN l.fence ELSE excluded.fence END,
            worker_id = excluded.worker_id, token = excluded.token,
            expires_at = CASE WHEN l.token = excluded.token THEN l.expires_at ELSE excluded.expires_at END;
    END IF;
    RETURN QUERY
    WITH taken AS (
        UPDATE events AS e SET
            status = 'PROCESSING', lane = 0, attempts = e.attempts + 1, fence = e.fence + 1, worker_id = p_worker_id,
            token = p_token, lock_key = p_lock_key, updated_at = v_now, processing_started_at = v_now,
            started_at = NULL, lease_expires_at = v_expires
        WHERE e.id = ANY (v_ids)
        RETURNING e.*
    ), logged AS (
        INSERT INTO event_log (
            tx, id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, at, created_at
        )
        SELECT (SELECT log_transaction()), t.id, t.event_id, p_bus, t.type, 'PICKED', 'PROCESSING', t.attempts, t.generation, t.fence, p_worker_id,
            v_now, t.created_at
        FROM taken AS t ORDER BY -t.priority, t.id
    ), counted AS (
        INSERT INTO event_count_notes (bus, pending, processing) VALUES (p_bus, -cardinality(v_ids), cardinality(v_ids))
    )
    SELECT t.id, t.event_id::text, t.type, t.payload,
        CASE WHEN t.priority <> 0
            OR coalesce(t.metadata, t.errors, t.idempotency_key) IS NOT NULL
            OR coalesce(t.max_attempts, array_length(t.tags, 1)) IS NOT NULL OR t.parent_id IS NOT NULL
        THEN json_build_array(
            t.metadata, t.tags, t.priority, t.max_attempts, t.parent_id, t.idempotency_key, t.errors
        )::text END,
        t.attempts, t.generation, t.fence, t.has_results,
        date_part('epoch', t.created_at), date_part('epoch', t.due_at), date_part('epoch', v_now),
        date_part('epoch', v_expires), v_revision
    FROM taken AS t ORDER BY -t.priority, t.id;
END
$$;

-- Completes claims that are current and have left no results before, in the order given. If one of them is otherwise,
-- nothing happens at all (error DB001): then the kernel judges each by itself.
-- The entry carries everything: from now on it is the event. What its handlers did comes twice: as p_results for the
-- entry, and row by row for event_results. Relies on events_id.
-- The trap: by token or status the planner would compare every claim there is with every one that is given, because
-- it expects next to none. `|| ''` hides those indexes from it.
CREATE FUNCTION complete_events(
    p_now double precision, p_channel text, p_ids bigint[], p_tokens text[], p_fences bigint[],
    p_times double precision[], p_codes integer[], p_results text[], p_result_ids bigint[], p_handler_ids text[],
    p_statuses text[], p_attempts integer[], p_errors text[], p_values text[], p_result_times double precision[],
    p_result_fences bigint[], p_worker_ids text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now timestamptz := the_time(p_now);
    v_count bigint;
    v_freed text[];
BEGIN
    WITH done AS (
        DELETE FROM events AS e
        USING (
            SELECT * FROM unnest(p_ids, p_tokens, p_fences, p_times, p_codes, p_results) WITH ORDINALITY
                AS g (id, token, fence, time_ms, code, results, n)
            ORDER BY g.id -- rows are locked in one order, here and in renew_event_claims.sql
        ) AS given
        WHERE e.id = given.id AND e.token || '' = given.token AND e.fence = given.fence
            AND e.status || '' = 'PROCESSING' AND NOT e.has_results
        RETURNING given.n, given.time_ms, given.code, given.results, e.*
    ), logged AS (
        INSERT INTO event_log (
            tx, id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, token, at, created_at,
            execution_time_ms, status_code, completed, priority, max_attempts, due_at, processing_started_at,
            started_at, idempotency_key, parent_id, tags, metadata, errors, payload, results
        )
        SELECT
            (SELECT log_transaction()), d.id, d.event_id, d.bus, d.type, 'COMPLETED', 'COMPLETED', d.attempts,
            d.generation, d.fence, d.worker_id, d.token, v_now, d.created_at, d.time_ms, d.code, true, d.priority, d.max_attempts, d.due_at,
            d.processing_started_at, d.started_at, d.idempotency_key, d.parent_id, array_to_json(d.tags)::text,
            d.metadata, d.errors, d.payload, d.results
        FROM done AS d ORDER BY d.n
    ), counted AS (
        INSERT INTO event_count_notes (bus, processing, completed)
        SELECT d.bus, -count(*), count(*) FROM done AS d GROUP BY d.bus
    ), freed AS (
        DELETE FROM locks AS l USING done AS d
        WHERE d.lock_key IS NOT NULL AND l.key = d.lock_key AND l.token = d.token
        RETURNING d.bus
    )
    SELECT (SELECT count(*) FROM done), (SELECT array_agg(DISTINCT f.bus) FROM freed AS f) INTO v_count, v_freed;
    IF v_count <> cardinality(p_ids) THEN
        RAISE EXCEPTION 'not all of these claims are current and plain' USING ERRCODE = 'DB001';
    END IF;
    IF p_result_ids IS NOT NULL THEN
        INSERT INTO event_results (
            id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id
        )
        SELECT r.id, r.handler_id, r.status, r.attempts, r.error, r.value, r.time_ms, r.fence, r.worker_id
        FROM unnest(
            p_result_ids, p_handler_ids, p_statuses, p_attempts, p_errors, p_values, p_result_times, p_result_fences,
            p_worker_ids
        ) WITH ORDINALITY AS r (id, handler_id, status, attempts, error, value, time_ms, fence, worker_id, n)
        ORDER BY r.n;
    END IF;
    IF v_freed IS NOT NULL AND p_channel IS NOT NULL THEN
        PERFORM pg_notify(p_channel, bus) FROM unnest(v_freed) AS bus;
    END IF;
END
$$;

-- Both in one step: what is done makes room for what is next.
CREATE FUNCTION complete_and_claim_events(
    p_now double precision, p_channel text, p_ids bigint[], p_tokens text[], p_fences bigint[],
    p_times double precision[], p_codes integer[], p_results text[], p_result_ids bigint[], p_handler_ids text[],
    p_statuses text[], p_attempts integer[], p_errors text[], p_values text[], p_result_times double precision[],
    p_result_fences bigint[], p_worker_ids text[],
    p_bus text, p_worker_id text, p_token text, p_limit integer, p_lease double precision, p_lock_key text,
    p_tags text[], p_floor bigint, p_expired boolean, p_thorough boolean
) RETURNS TABLE (
    id bigint, event_id text, type text, payload text, rest text, attempts integer, generation integer, fence bigint,
    has_results boolean, created double precision, due double precision, picked double precision,
    expires double precision, revision text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM complete_events(
        p_now, p_channel, p_ids, p_tokens, p_fences, p_times, p_codes, p_results, p_result_ids, p_handler_ids,
        p_statuses, p_attempts, p_errors, p_values, p_result_times, p_result_fences, p_worker_ids
    );
    RETURN QUERY SELECT * FROM claim_next_events(
        p_now, p_bus, p_worker_id, p_token, p_limit, p_lease, p_lock_key, p_tags, p_floor, p_expired, p_thorough
    );
END
$$;

-- Makes the days of the log that will be needed soon. A day that exists already costs one look. Attaching a table does
-- not wait for writers of other days, as creating it in its place would; and it gives up rather than hold them up.
CREATE FUNCTION make_log_days(p_now double precision, p_days integer) RETURNS integer
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
            NULL; -- somebody else made it, or entries of that day are in event_log_rest: as good, only slower to drop
        END;
    END LOOP;
    RETURN v_made;
END
$$;

-- Drops the oldest day of the log that ended before an instant, with the COMPLETED events of that day and their names,
-- keys and results. What other events left there moves to event_log_rest. Answers the day, or NULL if there is none.
-- Waits at most two seconds for those who use the log, because everybody else waits behind it.
CREATE FUNCTION drop_log_day(p_now double precision, p_older_than double precision) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET lock_timeout = '2s'
AS $$
DECLARE
    v_before date := ((the_time(p_now) - make_interval(secs => p_older_than)) AT TIME ZONE 'UTC')::date;
    v_day text;
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
    EXECUTE format('ALTER TABLE event_log DETACH PARTITION %I', v_day);
    EXECUTE format('CREATE TEMPORARY TABLE ended ON COMMIT DROP AS SELECT id, event_id, bus FROM %I WHERE completed', v_day);
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
    INSERT INTO event_count_notes (bus, completed) SELECT bus, -count(*) FROM pg_temp.ended GROUP BY bus;
    DROP TABLE pg_temp.ended;
    RETURN v_day;
END
$$;
