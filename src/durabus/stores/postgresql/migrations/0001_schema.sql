-- Every table and function of durabus; layout.py draws the tables.
-- Columns of eight bytes come first, so that no row wastes space on alignment. Names compare by their bytes.
-- Each function sets the planner: a plan made while the queue was empty must also suit a long queue, and no scan may
-- depend on the backlog. Before PostgreSQL 18, a disabled plan without an alternative has a very high cost, and the
-- server compiles expensive plans (a second for each call): hence jit = off.

-- ===== Tables =====

CREATE SEQUENCE event_ids;
CREATE SEQUENCE lock_fences;
CREATE SEQUENCE handler_revisions;
-- The sequence has no cache: of two entries, the one written later must have the larger position.
CREATE SEQUENCE log_positions;

CREATE TABLE installation (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    single boolean PRIMARY KEY DEFAULT true CHECK (single)
);
INSERT INTO installation DEFAULT VALUES;

-- Returns the ordering key in the metadata of an event.
CREATE FUNCTION ordering_key_of(p_metadata text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    v_key json;
BEGIN
    IF position('"ordering_key"' IN p_metadata) = 0 THEN
        RETURN NULL;
    END IF;
    v_key := p_metadata::json -> 'ordering_key';
    IF json_typeof(v_key) IS DISTINCT FROM 'string' THEN
        RETURN NULL;
    END IF;
    RETURN nullif(v_key #>> '{}', '');
END
$$;

CREATE TABLE events (
    id bigint NOT NULL,
    fence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    processing_started_at timestamptz,
    started_at timestamptz,
    lease_expires_at timestamptz,
    event_id uuid NOT NULL,
    parent_id uuid,
    attempts integer NOT NULL,
    generation integer NOT NULL,
    max_attempts integer,
    priority integer NOT NULL,
    lane smallint NOT NULL,
    has_results boolean NOT NULL,
    status text COLLATE "C" NOT NULL CHECK (status IN ('PENDING', 'PROCESSING')),
    bus text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C",
    token text COLLATE "C",
    lock_key text COLLATE "C",
    idempotency_key text COLLATE "C",
    tags text[] COLLATE "C",
    metadata text,
    ordering_key text COLLATE "C" GENERATED ALWAYS AS (ordering_key_of(metadata)) STORED,
    errors text,
    payload text NOT NULL
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000
);

-- No primary key on id: the planner would walk it past every claimed row to find the next event.
CREATE UNIQUE INDEX events_id ON events (id);
ALTER TABLE events REPLICA IDENTITY USING INDEX events_id;
CREATE INDEX events_fresh ON events (bus, (-priority), id) WHERE lane = 1;
CREATE INDEX events_returned ON events (bus, (-priority), id) WHERE lane = 2;
CREATE INDEX events_delayed ON events (bus, due_at, id) WHERE lane = 0 AND status = 'PENDING';
CREATE INDEX events_leased ON events (bus, lease_expires_at, id) WHERE status = 'PROCESSING';
CREATE INDEX events_token ON events (token) WHERE token IS NOT NULL;
CREATE INDEX events_parent ON events (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX events_tags ON events USING gin (tags) WITH (fastupdate = off) WHERE lane > 0 AND tags IS NOT NULL;

CREATE INDEX events_ordering_key ON events (bus, ordering_key, status, id) WHERE ordering_key IS NOT NULL;

CREATE TABLE dead_letters (
    id bigint PRIMARY KEY,
    fence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    processing_started_at timestamptz,
    started_at timestamptz,
    event_id uuid NOT NULL,
    parent_id uuid,
    attempts integer NOT NULL,
    generation integer NOT NULL,
    max_attempts integer,
    priority integer NOT NULL,
    status text COLLATE "C" NOT NULL CHECK (status IN ('COMPLETED_WITH_ERRORS', 'FAILED')),
    bus text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C",
    idempotency_key text COLLATE "C",
    tags text[] COLLATE "C",
    metadata text,
    errors text,
    payload text NOT NULL
);

CREATE INDEX dead_letters_created ON dead_letters (created_at, id);
CREATE INDEX dead_letters_bus ON dead_letters (bus, created_at, id);
CREATE INDEX dead_letters_parent ON dead_letters (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE published (
    tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    position bigint NOT NULL DEFAULT nextval('log_positions'),
    id bigint NOT NULL,
    at timestamptz NOT NULL,
    event_id uuid NOT NULL,
    parent_id uuid,
    known boolean NOT NULL DEFAULT true,
    bus text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    tags text,
    metadata text
);

CREATE UNIQUE INDEX published_event ON published (event_id) WHERE known;
CREATE UNIQUE INDEX published_position ON published (tx, position);

CREATE TABLE event_log (
    tx xid8 NOT NULL,
    position bigint NOT NULL DEFAULT nextval('log_positions'),
    id bigint NOT NULL,
    fence bigint NOT NULL,
    at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    next_retry_at timestamptz,
    due_at timestamptz,
    processing_started_at timestamptz,
    started_at timestamptz,
    execution_time_ms double precision,
    event_id uuid NOT NULL,
    parent_id uuid,
    attempt integer NOT NULL,
    generation integer NOT NULL,
    status_code integer,
    reason text,
    priority integer,
    max_attempts integer,
    completed boolean,
    bus text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C",
    token text COLLATE "C",
    idempotency_key text COLLATE "C",
    error text,
    tags text,
    metadata text,
    errors text,
    results text,
    payload text
) PARTITION BY RANGE (at);

CREATE TABLE event_log_rest PARTITION OF event_log DEFAULT;
CREATE INDEX event_log_position ON event_log (tx, position);
CREATE INDEX event_log_event ON event_log (id);
CREATE INDEX event_log_completed ON event_log (bus, id) WHERE completed;
CREATE INDEX event_log_parent ON event_log (parent_id) WHERE completed AND parent_id IS NOT NULL;

CREATE TABLE idempotency_keys (
    id bigint NOT NULL,
    bus text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    PRIMARY KEY (bus, idempotency_key)
);

CREATE TABLE event_results (
    result_id bigint GENERATED ALWAYS AS IDENTITY,
    id bigint NOT NULL,
    fence bigint NOT NULL,
    lease_expires_at timestamptz,
    execution_time_ms double precision,
    attempts integer NOT NULL,
    handler_id text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C",
    token text COLLATE "C",
    settled_token text COLLATE "C",
    error text,
    value text,
    PRIMARY KEY (id, handler_id)
);

CREATE TABLE locks (
    key text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    token text COLLATE "C"
);

CREATE INDEX locks_expires ON locks (expires_at);

CREATE TABLE event_buses (
    bus text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    stopped_at timestamptz
);

CREATE INDEX event_buses_stopped ON event_buses (stopped_at) WHERE stopped_at IS NOT NULL;

CREATE TABLE event_handlers (
    bus text COLLATE "C" NOT NULL,
    handler_id text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    pattern text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    kept_until timestamptz,
    PRIMARY KEY (bus, handler_id, node)
);

CREATE VIEW subscriptions AS
SELECT handler_id AS id, pattern AS event_type, min(created_at) AS created_at
FROM event_handlers GROUP BY bus, handler_id, pattern;

CREATE TABLE positions (
    name text COLLATE "C" PRIMARY KEY,
    position text NOT NULL,
    updated_at timestamptz NOT NULL
);

-- How many events of each status a bus has: the sum, and the notes since then. A transaction only adds a note, so two
-- writers never wait for the same row, and no query counts events.
CREATE TABLE event_counts (
    bus text COLLATE "C" PRIMARY KEY,
    pending bigint NOT NULL,
    processing bigint NOT NULL,
    completed bigint NOT NULL,
    completed_with_errors bigint NOT NULL,
    failed bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE event_count_notes (
    pending integer NOT NULL DEFAULT 0,
    processing integer NOT NULL DEFAULT 0,
    completed integer NOT NULL DEFAULT 0,
    completed_with_errors integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    bus text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- ===== What the other functions use: the time, the position in the log, and the counts =====

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

-- ===== Ordering keys =====

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

-- ===== Claims and completions =====

-- The frequent calls, each in one round trip. The functions are translations of the kernel for the common case. In any
-- other case they change nothing and say so; then the kernel itself decides (settlements.py).

-- Locks and returns the first events of a lane of a bus that have one of the tags. The planner finds a rare tag in
-- events_tags, and a frequent one on a walk along events_fresh or events_returned.
CREATE FUNCTION next_tagged_events(p_bus text, p_lane integer, p_tags text[], p_limit integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET jit = off
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

-- Frees locks of claims that this transaction has ended, each only if its token holds no other event. Waits for
-- transactions that end another claim of the token at the same time: the last one must free the lock.
-- Returns the keys that are free now. One sequence gives the fences of all locks, so the rows can go.
-- `coalesce` leaves the planner events_token alone: see complete_events.
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

-- Claims the next events of a bus. Returns one row with id 0 and a reason as its type instead, if a lease is over
-- (`expired`), if the token holds claims already (`held`), or if the holder of the lock let it expire and must lose its
-- events first (`lock`): claims.py handles these cases.
-- Walks events_returned and events_fresh, the latter from p_floor on, and stops at the limit. SKIP LOCKED: racing
-- callers share the queue. The ids are an array before the UPDATE begins, so it cannot take more than were locked.
-- `coalesce` leaves the planner events_token alone: by status it would walk every claim of the bus in events_leased.
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
        EXIT WHEN NOT EXISTS (SELECT FROM events AS e WHERE e.bus = p_bus AND e.ordering_key IS NOT NULL);
        v_first := first_of_ordering_keys(p_bus, v_ids);
        -- Repeat if events were deferred: with a large limit, because many events of one key may stand before the
        -- others.
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

-- Completes current claims on events without stored results, in the given order. If one of them is not such a claim,
-- nothing is written (error DB001): then the kernel decides each of them. The log entry holds all columns: from now on
-- it is the event. The results of the handlers come twice: as p_results for the entry, and row by row for
-- event_results. Relies on events_id. With the indexes on token or status, or with nested loops, the planner would
-- compare all existing claims with all given ones, because it expects very few. `coalesce` hides those indexes, and
-- nested loops are off.
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
    v_freed text;
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
            d.metadata, d.errors, d.payload, d.results
        FROM done AS d ORDER BY d.n
    ), counted AS (
        INSERT INTO event_count_notes (bus, processing, completed)
        SELECT d.bus, -count(*), count(*) FROM done AS d GROUP BY d.bus
    )
    SELECT
        count(*), array_agg(d.lock_key) FILTER (WHERE d.lock_key IS NOT NULL),
        array_agg(d.token) FILTER (WHERE d.lock_key IS NOT NULL),
        array_agg(d.bus) FILTER (WHERE d.lock_key IS NOT NULL)
    INTO v_count, v_locks, v_tokens, v_buses FROM done AS d;
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

-- ===== Log partitions =====

-- Makes the log partitions of the next days. An existing one costs one look. Attaching a table does not wait for
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

-- Drops the oldest log partition whose day ended before an instant, with its COMPLETED events and their names, keys and
-- results. Entries of other events move to event_log_rest. Returns the name of the partition, or NULL if there is none.
-- Waits at most two seconds for other users of the log, because all later ones wait behind it.
CREATE FUNCTION drop_log_partition(p_now double precision, p_older_than double precision) RETURNS text
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
