-- Functions that make events due: parents whose children have ended, and events that wait for another event. 0001 has
-- the index of the waits, and says why each function sets options of the planner.

-- Makes parents due that were released until their children have ended, if none of these lives any more, and returns
-- their buses. The caller has ended children of these parents, or released the parents. Both hold an advisory lock on
-- the parent until their transaction ends, and look after they have got it: so of two last children that end at the
-- same time, the second one sees the end of the first. Relies on published_event, events_id and events_parent.
CREATE FUNCTION wake_parents(p_channel text, p_parent_ids uuid[]) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_ids bigint[];
    v_bus text;
BEGIN
    SELECT array_agg(e.id ORDER BY e.id) INTO v_ids FROM events AS e
    WHERE e.id = ANY (ARRAY(SELECT p.id FROM published AS p WHERE p.event_id = ANY (p_parent_ids) AND p.known));
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '.children.' || parent::text, 11))
    FROM unnest(v_ids) AS parent;
    FOR v_bus IN
        UPDATE events AS e SET due_at = e.updated_at, queue_part = 2, waiting_fence = NULL
        WHERE e.id = ANY (v_ids) AND e.waiting_fence = e.fence AND coalesce(e.status, '') = 'PENDING'
            AND NOT EXISTS (SELECT FROM events AS child WHERE child.parent_id = e.event_id)
        RETURNING e.bus
    LOOP
        IF p_channel IS NOT NULL THEN
            PERFORM pg_notify(p_channel, v_bus);
        END IF;
        RETURN NEXT v_bus;
    END LOOP;
END
$$;

-- Returns a payload as jsonb, which cannot hold NUL: a value that no wait has stands for it.
CREATE FUNCTION payload_as_jsonb(p_payload text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN p_payload::jsonb;
EXCEPTION WHEN untranslatable_character THEN
    RETURN regexp_replace(p_payload, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ue000NUL\\ue000', 'g')::jsonb;
END
$$;

-- Lets events meet waits, each given by the waiting event, the id of its result, and the memo: keeps the memo in the
-- place of the wait, and makes the waiting event due if it is PENDING. First locks all waiting events in the order of
-- their ids: a settlement that runs ends before, and two publishers cannot block each other. Of two events, the first
-- one counts. Relies on events_id and the primary key of event_results.
CREATE FUNCTION meet_found_waits(p_ids bigint[], p_handler_ids text[], p_memos text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    PERFORM FROM events AS e WHERE e.id = ANY (p_ids) ORDER BY e.id FOR NO KEY UPDATE;
    FOR i IN 1 .. cardinality(p_ids) LOOP
        UPDATE event_results AS r SET status = 'KEPT', value = p_memos[i]
        WHERE r.id = p_ids[i] AND r.handler_id = p_handler_ids[i] AND coalesce(r.status, '') = 'WAITING';
    END LOOP;
    UPDATE events AS e SET
        due_at = least(e.due_at, e.updated_at), queue_part = CASE e.queue_part WHEN 0 THEN 2 ELSE e.queue_part END
    WHERE e.id = ANY (p_ids) AND coalesce(e.status, '') = 'PENDING';
END
$$;

-- Lets new events meet the waits for them. For each event it jumps from one shape of waits to the next. An event that
-- finds a wait is stored after it, whatever their ids: ids do not have the order of commits. Publishers may call it,
-- although they may not write results. Relies on event_results_waiting and events_id.
CREATE FUNCTION meet_waits(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_event events;
    v_waiter record;
    v_prefix text;
    v_shape text;
    v_names text[];
    v_payload jsonb;
    v_memo text;
    v_ids bigint[] := '{}';
    v_handler_ids text[] := '{}';
    v_memos text[] := '{}';
BEGIN
    FOR v_event IN SELECT e.* FROM events AS e WHERE e.id = ANY (p_ids) ORDER BY e.id LOOP
        v_prefix := v_event.bus || chr(10) || v_event.type || chr(10);
        v_shape := v_prefix;
        v_payload := NULL;
        LOOP
            v_shape := (
                SELECT wait_shape(r.value) FROM event_results AS r
                WHERE r.status = 'WAITING' AND wait_shape(r.value) COLLATE "C" > v_shape
                ORDER BY wait_shape(r.value) COLLATE "C" LIMIT 1
            );
            EXIT WHEN v_shape IS NULL OR NOT starts_with(v_shape, v_prefix);
            v_names := names_of_shape(v_shape);
            IF v_payload IS NULL AND v_names <> '{}' THEN
                v_payload := payload_as_jsonb(v_event.payload);
            END IF;
            -- as durabus.model.wait.memo_of
            v_memo := '{"event":{"id":' || v_event.id || ',"event_id":"' || v_event.event_id || '","type":'
                || to_json(v_event.type) || ',"created_ms":'
                || floor(date_part('epoch', v_event.created_at) * 1000 + 0.5)::bigint
                || ',"parent_id":' || coalesce('"' || v_event.parent_id || '"', 'null')
                || ',"tags":' || coalesce(array_to_json(v_event.tags)::text, '[]')
                || ',"metadata":' || coalesce(v_event.metadata, 'null') || ',"payload":' || v_event.payload || '}}';
            FOR v_waiter IN
                SELECT r.id, r.handler_id FROM event_results AS r
                WHERE r.status = 'WAITING' AND wait_shape(r.value) COLLATE "C" = v_shape
                    AND wait_digest(r.value) COLLATE "C" = digest_of_fields(v_payload, v_names) AND r.id <> v_event.id
                    AND coalesce(date_part('epoch', v_event.created_at) < (r.value::json ->> 'until')::float8, true)
            LOOP
                v_ids := v_ids || v_waiter.id;
                v_handler_ids := v_handler_ids || v_waiter.handler_id;
                v_memos := v_memos || v_memo;
            END LOOP;
        END LOOP;
    END LOOP;
    IF v_ids <> '{}' THEN
        PERFORM meet_found_waits(v_ids, v_handler_ids, v_memos);
    END IF;
END
$$;
