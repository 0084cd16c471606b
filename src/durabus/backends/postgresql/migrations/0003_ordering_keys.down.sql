-- Takes 0003 back: the order of keys is forgotten, what was put aside may be claimed.
DROP TRIGGER events_line_returned ON events;
DROP TRIGGER events_line_left ON events;
UPDATE events SET lane = 2 WHERE lane = 3;
DROP FUNCTION claim_next_events, line_moves_on, first_in_line, first_of_line, line_lock;
DROP INDEX events_line;
DROP FUNCTION line_of;

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
