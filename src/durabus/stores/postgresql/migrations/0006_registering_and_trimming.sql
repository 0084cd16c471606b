-- Registering and trimming, each in one round trip, because a short-lived bus cannot afford several.

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

-- Deletes given events that are still COMPLETED, with their entries, ids, keys and results. Returns the number of
-- deleted events and entries of each bus. A second trim of the same events waits for the first one. Relies on
-- event_log_event, published_event, and the primary keys of idempotency_keys and event_results.
CREATE FUNCTION trim_completed(p_ids bigint[]) RETURNS TABLE (bus text, events bigint, entries bigint)
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
BEGIN
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT e.id, e.event_id, e.bus, e.idempotency_key FROM event_log AS e
        WHERE e.id = ANY (p_ids) AND e.completed ORDER BY e.id FOR UPDATE
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
        SELECT g.bus, count(*) AS events FROM gone AS g GROUP BY g.bus
    ), noted AS (
        INSERT INTO event_count_notes (bus, completed) SELECT c.bus, -c.events FROM counted AS c
    ), unlogged AS (
        SELECT l.bus, count(*) AS entries FROM (SELECT bus FROM logged UNION ALL SELECT bus FROM named) AS l GROUP BY l.bus
    )
    SELECT c.bus, c.events, coalesce(u.entries, 0) FROM counted AS c LEFT JOIN unlogged AS u ON u.bus = c.bus;
END
$$;
