-- Events of one ordering key line up. A claim that comes upon one which is not the first of its key puts it aside
-- (lane 3); whatever takes the one before it out of the way brings the first of the key back (lane 2: it was due).
-- Who looks at a key, or moves it on, holds an advisory lock on it until its transaction ends. Claims never wait for
-- that lock, they pass the key by; so what is put aside cannot miss the one who would bring it back, and nobody stands
-- still. Nothing changes for events without a key, but one look into an empty index.

-- The key that an event with this metadata has. In plpgsql, so that the planner sees the same call everywhere.
CREATE FUNCTION line_of(p_metadata text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF position('"ordering_key"' IN p_metadata) = 0 THEN
        RETURN NULL;
    END IF;
    IF json_typeof(p_metadata::json -> 'ordering_key') IS DISTINCT FROM 'string' THEN
        RETURN NULL;
    END IF;
    RETURN nullif(p_metadata::json ->> 'ordering_key', '');
END
$$;

CREATE INDEX events_line ON events (bus, line_of(metadata), status, id)
WHERE metadata IS NOT NULL AND line_of(metadata) IS NOT NULL;

CREATE FUNCTION line_lock(p_bus text, p_key text) RETURNS bigint
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT hashtextextended(current_schema() || '.' || length(p_bus)::text || '.' || p_bus || p_key, 7)
$$;

-- The first event of a key that may be claimed once it is due; -1 if one of them is being worked on.
CREATE FUNCTION first_of_line(p_bus text, p_key text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM events AS e
        WHERE e.bus = p_bus AND e.metadata IS NOT NULL AND line_of(e.metadata) = p_key AND e.status = 'PROCESSING'
    ) THEN
        RETURN -1;
    END IF;
    RETURN (
        SELECT e.id FROM events AS e
        WHERE e.bus = p_bus AND e.metadata IS NOT NULL AND line_of(e.metadata) = p_key AND e.status = 'PENDING'
        ORDER BY e.id LIMIT 1
    );
END
$$;

-- Of locked events that a claim found, those that may be claimed, in their order. Those behind others of their key are
-- put aside, together. A key that somebody else looks at just now is passed by (0). Relies on events_line.
CREATE FUNCTION first_in_line(p_bus text, p_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = on
AS $$
DECLARE
    v_may bigint[] := '{}';
    v_aside bigint[] := '{}';
    v_firsts jsonb := '{}';
    v_first bigint;
    v_id bigint;
    v_key text;
BEGIN
    FOR v_id, v_key IN
        SELECT given.id, CASE WHEN e.metadata IS NOT NULL THEN line_of(e.metadata) END
        FROM unnest(p_ids) WITH ORDINALITY AS given (id, n) JOIN events AS e ON e.id = given.id ORDER BY given.n
    LOOP
        IF v_key IS NULL THEN
            v_may := v_may || v_id;
            CONTINUE;
        END IF;
        v_first := v_firsts -> v_key;
        IF v_first IS NULL THEN
            v_first := CASE WHEN pg_try_advisory_xact_lock(line_lock(p_bus, v_key)) THEN first_of_line(p_bus, v_key)
                ELSE 0 END;
            v_firsts := v_firsts || jsonb_build_object(v_key, v_first);
        END IF;
        IF v_first = v_id THEN
            v_may := v_may || v_id;
        ELSIF v_first <> 0 THEN
            v_aside := v_aside || v_id;
        END IF;
    END LOOP;
    IF cardinality(v_aside) > 0 THEN
        UPDATE events AS e SET lane = 3 WHERE e.id = ANY (v_aside);
    END IF;
    RETURN v_may;
END
$$;

CREATE FUNCTION line_moves_on() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_key text := line_of(OLD.metadata);
BEGIN
    PERFORM pg_advisory_xact_lock(line_lock(OLD.bus, v_key));
    UPDATE events AS e SET lane = 2 WHERE e.lane = 3 AND e.id = (
        SELECT f.id FROM events AS f
        WHERE f.bus = OLD.bus AND f.metadata IS NOT NULL AND line_of(f.metadata) = v_key AND f.status = 'PENDING'
        ORDER BY f.id LIMIT 1
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER events_line_left AFTER DELETE ON events
FOR EACH ROW WHEN (OLD.metadata IS NOT NULL AND line_of(OLD.metadata) IS NOT NULL) EXECUTE FUNCTION line_moves_on();
-- Only a statement that sets due_at returns an event to the queue.
CREATE TRIGGER events_line_returned AFTER UPDATE OF due_at ON events
FOR EACH ROW WHEN (OLD.metadata IS NOT NULL AND line_of(OLD.metadata) IS NOT NULL) EXECUTE FUNCTION line_moves_on();

DROP FUNCTION claim_next_events;

-- Claims the next events of a bus. Instead of events it answers one row with id 0 and the reason as its type, if
-- somebody's lease is over (`expired`), the token holds claims already (`held`), or the lock was left by a holder
-- whose event must be taken from it first (`lock`): those are for states.py.
-- Walks events_returned and events_fresh, the latter from p_floor on, and stops at the limit. SKIP LOCKED: racing
-- callers share the queue. The ids are an array before the UPDATE begins, so it cannot take more than were locked.
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
    v_first bigint[];
    v_limit integer := p_limit;
    v_again boolean;
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
    LOOP
        IF p_event_id IS NOT NULL THEN
            v_fresh := '{}';
            v_ids := ARRAY(
                SELECT e.id FROM events AS e
                WHERE e.id = (SELECT p.id FROM published AS p WHERE p.event_id = p_event_id::uuid AND p.known)
                    AND e.bus = p_bus AND e.lane IN (1, 2)
                LIMIT v_limit FOR UPDATE SKIP LOCKED
            );
        ELSIF p_tags IS NOT NULL THEN
            v_ids := next_tagged_events(p_bus, 2, p_tags, v_limit);
            v_fresh := next_tagged_events(p_bus, 1, p_tags, v_limit);
        ELSE
            v_ids := ARRAY(
                SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.lane = 2
                ORDER BY -e.priority, e.id LIMIT v_limit FOR UPDATE SKIP LOCKED
            );
            v_fresh := ARRAY(
                SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.lane = 1 AND (-e.priority, e.id) > (0, p_floor)
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
        EXIT WHEN NOT EXISTS (
            SELECT FROM events AS e
            WHERE e.bus = p_bus AND e.metadata IS NOT NULL AND line_of(e.metadata) IS NOT NULL
        );
        v_first := first_in_line(p_bus, v_ids);
        -- Once more if some were put aside: many at a time, because a long line of one key may lie before the rest.
        v_again := EXISTS (SELECT FROM events AS e WHERE e.id = ANY (v_ids) AND e.lane = 3);
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
