-- Events of one ordering key line up. A claim that comes upon one which is not the first of its key puts it aside
-- (lane 3); whatever takes the one before it out of the way brings the first of the key back (lane 2: it was due).
-- Who looks at a key, or moves it on, holds an advisory lock on it until its transaction ends. Claims never wait for
-- that lock, they pass the key by; so what is put aside cannot miss the one who would bring it back, and nobody stands
-- still. Nothing changes for events without a key, but one look into an empty index.

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
