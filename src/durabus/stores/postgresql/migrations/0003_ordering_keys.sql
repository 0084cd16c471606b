-- Events of one ordering key run one after the other. A claim that finds an event which is not the first of its key
-- defers it (lane 3). When the event before it ends or is set back, a trigger brings the first event of the key back
-- (lane 2: it was due). Both hold an advisory lock on the key until their transaction ends, so a trigger cannot miss an
-- event that is being deferred. A claim never waits for that lock: it skips the key. Events without a key cost one look
-- into an empty index.

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
        UPDATE events AS e SET lane = 3 WHERE e.id = ANY (v_deferred);
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
    UPDATE events AS e SET lane = 2 WHERE e.lane = 3 AND e.id = (
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
