-- Makes every table of durabus, and the functions that all others use; layout.py draws the tables.
-- Columns of eight bytes come first, so that no row wastes space on alignment. Names compare by their bytes.
-- Each function sets options of the planner: a plan made while the queue was empty must also suit a long queue, and no
-- scan may depend on the backlog. Before PostgreSQL 18, a disabled plan without an alternative has a very high cost,
-- and the server compiles expensive plans (a second for each call): hence jit = off.

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

-- The functions of the index event_results_waiting. They get the value of a result with the status WAITING.
CREATE FUNCTION wait_shape(p_value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN p_value::json ->> 'shape';
END
$$;

-- Returns a digest of the named fields of a JSON object; NULL if it lacks one of them, or one is no scalar. Equal JSON
-- values have equal digests: 1 and 1.0 do, 1 and true do not.
CREATE FUNCTION digest_of_fields(p_object jsonb, p_names text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    v_name text;
    v_type text;
    v_text text := '';
BEGIN
    FOREACH v_name IN ARRAY coalesce(p_names, '{}') LOOP
        v_type := CASE WHEN jsonb_typeof(p_object) = 'object' THEN jsonb_typeof(p_object -> v_name) END;
        IF v_type IS NULL OR v_type IN ('object', 'array') THEN
            RETURN NULL;
        END IF;
        v_text := v_text || v_type || ' ' || md5(coalesce(
            CASE v_type WHEN 'number' THEN trim_scale((p_object ->> v_name)::numeric)::text ELSE p_object ->> v_name END,
            ''
        ));
    END LOOP;
    RETURN md5(v_text);
END
$$;

CREATE FUNCTION names_of_shape(p_shape text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN ARRAY(
        SELECT name FROM json_array_elements_text(split_part(p_shape, chr(10), 3)::json) WITH ORDINALITY AS given (name, n)
        ORDER BY n
    );
END
$$;

-- PostgreSQL finds a column by a known offset only if no column before it is NULL or of variable length. So the columns
-- that every row has come first.
CREATE TABLE events (
    id bigint NOT NULL,
    fence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    event_id uuid NOT NULL,
    attempts integer NOT NULL,
    generation integer NOT NULL,
    priority integer NOT NULL,
    queue_part smallint NOT NULL,  -- 0 delayed, 1 fresh, 2 returned, 3 deferred. PROCESSING events have 0
    has_results boolean NOT NULL,
    processing_started_at timestamptz,
    lease_expires_at timestamptz,
    started_at timestamptz,
    waiting_fence bigint,  -- the fence with which the event was released until its children have ended
    parent_id uuid,
    max_attempts integer,
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
CREATE INDEX events_fresh ON events (bus, (-priority), id) WHERE queue_part = 1;
CREATE INDEX events_returned ON events (bus, (-priority), id) WHERE queue_part = 2;
CREATE INDEX events_delayed ON events (bus, due_at, id) WHERE queue_part = 0 AND status = 'PENDING';
CREATE INDEX events_leased ON events (bus, lease_expires_at, id) WHERE status = 'PROCESSING';
CREATE INDEX events_token ON events (token) WHERE token IS NOT NULL;
CREATE INDEX events_parent ON events (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX events_tags ON events USING gin (tags) WITH (fastupdate = off) WHERE queue_part > 0 AND tags IS NOT NULL;

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
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(), -- the transaction that stored it; tx may be larger: log_transaction
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
CREATE INDEX published_xact ON published (xact) WHERE xact <> tx;

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
    lock_key text COLLATE "C",
    error text,
    value text,
    PRIMARY KEY (id, handler_id)
);

-- Returns the values of a wait, for the index below. It runs in indexes and during restores, so it names its functions.
CREATE FUNCTION wait_digest(p_value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN digest_of_fields((p_value::jsonb) -> 'where', names_of_shape(wait_shape(p_value)));
END
$$;

-- The waits. All other results stay out of this index.
CREATE INDEX event_results_waiting ON event_results (wait_shape(value) COLLATE "C", wait_digest(value) COLLATE "C", id)
WHERE status = 'WAITING';

-- New waits for which the store must look once more. A transaction that publishes and one that begins a wait may miss
-- each other if both run at the same time. began is what the wait has seen: what it has not seen was stored after it.
-- horizon is a transaction number that was not given yet when the wait was visible: once all transactions below it have
-- ended, every publisher after them has seen the wait.
CREATE TABLE unchecked_waits (
    id bigint NOT NULL,
    horizon xid8,
    began pg_snapshot NOT NULL,
    bus text COLLATE "C" NOT NULL,
    handler_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (bus, id, handler_id)
);

CREATE INDEX event_results_offered ON event_results (handler_id, lease_expires_at)
    WHERE lease_expires_at IS NOT NULL AND status IN ('PENDING', 'PROCESSING');
CREATE INDEX event_results_token ON event_results (token) WHERE token IS NOT NULL;
CREATE INDEX event_results_locked ON event_results (lock_key, lease_expires_at) WHERE lock_key IS NOT NULL;

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

-- Processes that hold an advisory lock on their incarnation as long as they live.
CREATE TABLE processes (
    incarnation text COLLATE "C" PRIMARY KEY,
    shown_at timestamptz NOT NULL
);

CREATE TABLE positions (
    name text COLLATE "C" PRIMARY KEY,
    position text NOT NULL,
    updated_at timestamptz NOT NULL
);

-- The number of events of each status on a bus is the sum in event_counts plus the notes since then. A transaction only
-- adds a note, so two writers never wait for the same row, and no query counts events.
CREATE TABLE event_counts (
    bus text COLLATE "C" PRIMARY KEY,
    pending bigint NOT NULL,
    processing bigint NOT NULL,
    completed bigint NOT NULL,
    completed_with_errors bigint NOT NULL,
    failed bigint NOT NULL,
    cancelled bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE event_count_notes (
    pending integer NOT NULL DEFAULT 0,
    processing integer NOT NULL DEFAULT 0,
    completed integer NOT NULL DEFAULT 0,
    completed_with_errors integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    bus text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- ===== Functions that the others use: the time, the position in the log, and the counts =====

CREATE FUNCTION the_time(p_now double precision) RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$ SELECT coalesce(to_timestamp(p_now), clock_timestamp()) $$;

-- Returns the transaction number for a new log entry: that of this transaction, or of the newest finished one if that
-- is larger. A transaction that got its number early may continue what a later one has committed; with its own number,
-- its entries would come before those they follow. Readers wait for all transactions below theirs, so no new entry can
-- come before one that was read.
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
            sum(completed_with_errors) AS completed_with_errors, sum(failed) AS failed, sum(cancelled) AS cancelled
        FROM noted GROUP BY bus
    )
    INSERT INTO event_counts AS known (bus, pending, processing, completed, completed_with_errors, failed, cancelled)
    SELECT * FROM summed ORDER BY bus
    ON CONFLICT (bus) DO UPDATE SET
        pending = known.pending + excluded.pending,
        processing = known.processing + excluded.processing,
        completed = known.completed + excluded.completed,
        completed_with_errors = known.completed_with_errors + excluded.completed_with_errors,
        failed = known.failed + excluded.failed,
        cancelled = known.cancelled + excluded.cancelled;
    DELETE FROM event_counts
    WHERE pending = 0 AND processing = 0 AND completed = 0 AND completed_with_errors = 0 AND failed = 0
        AND cancelled = 0;
END
$$;
