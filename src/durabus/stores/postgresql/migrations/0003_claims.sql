-- Functions that claim and complete events. 0001 says why each function sets options of the planner.

-- ===== Claims and completions =====

-- The frequent calls, each in one round trip. The functions are translations of the lifecycle for the common case. In
-- any other case they change nothing and say so; then the lifecycle itself decides (settlements.py).

-- Locks and returns the first events of a bus that are in the given part of its queue and have one of the tags. The
-- planner finds a rare tag in events_tags, and a frequent one on a walk along events_fresh or events_returned.
CREATE FUNCTION next_tagged_events(p_bus text, p_queue_part integer, p_tags text[], p_limit integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
AS $$
BEGIN
    IF p_queue_part = 1 THEN
        RETURN ARRAY(
            SELECT e.id FROM events AS e
            WHERE e.bus = p_bus AND e.queue_part = 1 AND e.tags IS NOT NULL AND e.tags && p_tags
            ORDER BY -e.priority, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
        );
    END IF;
    RETURN ARRAY(
        SELECT e.id FROM events AS e
        WHERE e.bus = p_bus AND e.queue_part = 2 AND e.tags IS NOT NULL AND e.tags && p_tags
        ORDER BY -e.priority, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    );
END
$$;

-- Frees locks of claims that this transaction has ended, each only if its token holds no other event. Waits for
-- transactions that end another claim of the token at the same time: the last one must free the lock.
-- Returns the keys that are free now. One sequence gives the fences of all locks, so the rows can be deleted.
-- With `coalesce` the planner can use events_token only: see complete_events.
CREATE FUNCTION free_event_locks(p_keys text[], p_tokens text[]) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_key text;
    v_token text;
BEGIN
    FOR v_key, v_token IN
        SELECT DISTINCT g.key COLLATE "C", g.token FROM unnest(p_keys, p_tokens) AS g (key, token) ORDER BY 1
    LOOP
        PERFORM FROM locks AS l WHERE l.key = v_key AND l.token = v_token FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        RETURN QUERY DELETE FROM locks AS l WHERE l.key = v_key AND l.token = v_token AND NOT EXISTS (
            SELECT FROM events AS e
            WHERE e.token = v_token AND e.lock_key = v_key AND coalesce(e.status, '') = 'PROCESSING'
        ) RETURNING l.key;
    END LOOP;
END
$$;

-- Claims the next events of a bus. In four cases it claims none and returns one row with id 0 and the case as its
-- type: a lease is over (`expired`), the store must look once more for the events of new waits (`waits`), the token
-- holds claims already (`held`), or the holder of the lock, or of a handler under it, let its lease end and must lose its claims first (`lock`).
-- claims.py handles these cases.
-- Walks events_returned and events_fresh, the latter from p_floor on, and stops at the limit. With SKIP LOCKED, racing
-- callers share the queue. The ids are an array before the UPDATE begins, so it cannot take more than were locked.
-- With `coalesce` the planner can use events_token only: by status it would walk every claim of the bus in
-- events_leased.
CREATE FUNCTION claim_next_events(
    p_now double precision, p_bus text, p_worker_id text, p_token text, p_limit integer, p_lease double precision,
    p_lock_key text, p_tags text[], p_floor bigint, p_expired boolean, p_thorough boolean, p_event_id text DEFAULT NULL
) RETURNS TABLE (
    id bigint, event_id text, type text, payload text, rest text, attempts integer, generation integer, fence bigint,
    has_results boolean, created double precision, due double precision, picked double precision,
    expires double precision, revision text
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
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
    v_handlers_end timestamptz; -- of claims that were made under the lock: they outlive the claims on their events
    v_fresh bigint[];
    v_ids bigint[];
    v_first bigint[];
    v_limit integer := p_limit;
    v_again boolean;
BEGIN
    SELECT b.revision::text INTO v_revision FROM event_buses AS b WHERE b.bus = p_bus;
    IF EXISTS (SELECT FROM events AS e WHERE e.token = p_token AND coalesce(e.status, '') = 'PROCESSING') THEN
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
        IF p_expired AND EXISTS (
            SELECT FROM unchecked_waits AS w
            WHERE w.bus = p_bus AND (w.horizon IS NULL OR w.horizon <= pg_snapshot_xmin(pg_current_snapshot()))
        ) THEN
            RETURN QUERY SELECT 0::bigint, NULL, 'waits', NULL, NULL, NULL::integer, NULL::integer, NULL::bigint,
                NULL::boolean, NULL::float8, NULL::float8, NULL::float8, NULL::float8, v_revision;
            RETURN;
        END IF;
        IF EXISTS (
            SELECT FROM events AS e
            WHERE e.bus = p_bus AND e.queue_part = 0 AND e.status = 'PENDING' AND e.due_at <= v_now
        ) THEN
            UPDATE events AS e SET queue_part = 2 WHERE e.id = ANY (ARRAY(
                SELECT d.id FROM events AS d
                WHERE d.bus = p_bus AND d.queue_part = 0 AND d.status = 'PENDING' AND d.due_at <= v_now
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
        v_handlers_end := (
            SELECT max(r.lease_expires_at) FROM event_results AS r
            WHERE r.lock_key = p_lock_key AND EXISTS (SELECT FROM events AS e WHERE e.id = r.id)
        );
        IF v_handlers_end > v_now THEN
            RETURN;
        END IF;
    END IF;
    LOOP
        IF p_event_id IS NOT NULL THEN
            v_fresh := '{}';
            v_ids := ARRAY(
                SELECT e.id FROM events AS e
                WHERE e.id = (SELECT p.id FROM published AS p WHERE p.event_id = p_event_id::uuid AND p.known)
                    AND e.bus = p_bus AND e.queue_part IN (1, 2)
                LIMIT v_limit FOR UPDATE SKIP LOCKED
            );
        ELSIF p_tags IS NOT NULL THEN
            v_ids := next_tagged_events(p_bus, 2, p_tags, v_limit);
            v_fresh := next_tagged_events(p_bus, 1, p_tags, v_limit);
        ELSE
            v_ids := ARRAY(
                SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.queue_part = 2
                ORDER BY -e.priority, e.id LIMIT v_limit FOR UPDATE SKIP LOCKED
            );
            v_fresh := ARRAY(
                SELECT e.id FROM events AS e
                WHERE e.bus = p_bus AND e.queue_part = 1 AND (-e.priority, e.id) > (0, p_floor)
                ORDER BY -e.priority, e.id LIMIT v_limit FOR UPDATE SKIP LOCKED
            );
        END IF;
        IF cardinality(v_ids) = 0 THEN
            v_ids := v_fresh;
        ELSIF cardinality(v_fresh) > 0 THEN
            v_ids := ARRAY(
                SELECT e.id FROM events AS e WHERE e.id = ANY (v_ids || v_fresh)
                ORDER BY -e.priority, e.id LIMIT v_limit
            );
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM events AS e WHERE e.bus = p_bus AND e.ordering_key IS NOT NULL);
        v_first := first_of_ordering_keys(p_bus, v_ids);
        -- Repeat if events were deferred: with a large limit, because many events of one key may stand before the
        -- others.
        v_again := EXISTS (SELECT FROM events AS e WHERE e.id = ANY (v_ids) AND e.queue_part = 3);
        v_ids := v_first;
        EXIT WHEN NOT v_again OR cardinality(v_ids) >= p_limit;
        v_limit := greatest(p_limit, 1000);
    END LOOP;
    v_ids := v_ids[1:p_limit];
    IF cardinality(v_ids) < p_limit AND NOT p_thorough THEN
        RETURN QUERY SELECT * FROM claim_next_events(
            p_now, p_bus, p_worker_id, p_token, p_limit, p_lease, p_lock_key, p_tags, 0, p_expired, true, p_event_id
        );
        RETURN;
    END IF;
    IF cardinality(v_ids) = 0 THEN
        RETURN;
    END IF;
    IF v_handlers_end IS NOT NULL OR v_lock.token IS NOT NULL AND v_lock.token <> p_token THEN
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
            status = 'PROCESSING', queue_part = 0, attempts = e.attempts + 1, fence = e.fence + 1,
            worker_id = p_worker_id, token = p_token, lock_key = p_lock_key, updated_at = v_now,
            processing_started_at = v_now, started_at = NULL, lease_expires_at = v_expires
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

-- Completes current claims on events without stored results, in the given order. If one of them is not such a claim,
-- the function writes nothing (error DB001): then the lifecycle decides each of them. The log entry holds all columns:
-- from now on it is the event. The results of the handlers come twice: as p_results for the entry, where one element
-- stands for all events, and row by row for event_results. Relies on events_id. With the indexes on token or status, or
-- with nested loops, the planner would compare all existing claims with all given ones, because it expects very few.
-- `coalesce` hides those indexes, and nested loops are off.
CREATE FUNCTION complete_events(
    p_now double precision, p_channel text, p_ids bigint[], p_tokens text[], p_fences bigint[],
    p_times double precision[], p_codes integer[], p_results text[], p_result_ids bigint[], p_handler_ids text[],
    p_statuses text[], p_attempts integer[], p_errors text[], p_values text[], p_result_times double precision[],
    p_result_fences bigint[], p_worker_ids text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_nestloop = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := the_time(p_now);
    v_count bigint;
    v_locks text[];
    v_tokens text[];
    v_buses text[];
    v_parents uuid[];
    v_freed text;
    v_result text := CASE WHEN cardinality(p_results) = 1 THEN p_results[1] END;
BEGIN
    WITH done AS (
        DELETE FROM events AS e
        USING (
            SELECT * FROM unnest(p_ids, p_tokens, p_fences, p_times, p_codes, p_results) WITH ORDINALITY
                AS g (id, token, fence, time_ms, code, results, n)
            ORDER BY g.id -- renew_event_claims locks rows in the same order
        ) AS given
        WHERE e.id = ANY (p_ids) AND e.id = given.id AND coalesce(e.token, '') = given.token AND e.fence = given.fence
            AND coalesce(e.status, '') = 'PROCESSING' AND NOT e.has_results
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
            d.metadata, d.errors, d.payload, coalesce(d.results, v_result)
        FROM done AS d ORDER BY d.n
    ), counted AS (
        INSERT INTO event_count_notes (bus, processing, completed)
        SELECT d.bus, -count(*), count(*) FROM done AS d GROUP BY d.bus
    )
    SELECT
        count(*), array_agg(d.lock_key) FILTER (WHERE d.lock_key IS NOT NULL),
        array_agg(d.token) FILTER (WHERE d.lock_key IS NOT NULL),
        array_agg(d.bus) FILTER (WHERE d.lock_key IS NOT NULL),
        array_agg(d.parent_id) FILTER (WHERE d.parent_id IS NOT NULL)
    INTO v_count, v_locks, v_tokens, v_buses, v_parents FROM done AS d;
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
    IF v_locks IS NOT NULL THEN
        FOR v_freed IN SELECT * FROM free_event_locks(v_locks, v_tokens) LOOP
            IF p_channel IS NOT NULL THEN
                PERFORM pg_notify(p_channel, v_buses[array_position(v_locks, v_freed)]);
            END IF;
        END LOOP;
    END IF;
    IF v_parents IS NOT NULL THEN
        PERFORM wake_parents(p_channel, v_parents);
    END IF;
END
$$;

-- Completes events and claims the next ones, in one round trip.
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
SET jit = off
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

-- Completes events and returns their log entries, in one round trip. Relies on event_log_event.
CREATE FUNCTION complete_and_read_events(
    p_now double precision, p_channel text, p_ids bigint[], p_tokens text[], p_fences bigint[],
    p_times double precision[], p_codes integer[], p_results text[], p_result_ids bigint[], p_handler_ids text[],
    p_statuses text[], p_attempts integer[], p_errors text[], p_values text[], p_result_times double precision[],
    p_result_fences bigint[], p_worker_ids text[]
) RETURNS SETOF event_log
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM complete_events(
        p_now, p_channel, p_ids, p_tokens, p_fences, p_times, p_codes, p_results, p_result_ids, p_handler_ids,
        p_statuses, p_attempts, p_errors, p_values, p_result_times, p_result_fences, p_worker_ids
    );
    RETURN QUERY SELECT * FROM event_log AS l WHERE l.id = ANY (p_ids) AND l.completed;
END
$$;
