-- Makes every table of durabus; layout.py draws them.
-- Wide columns (payload last) come after the narrow ones, so that reading a status needs no overflow pages.
-- Partial indexes end with the columns of their own condition, so that counting reads the index alone.

CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    bus TEXT NOT NULL,
    type TEXT NOT NULL,
    event_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('PENDING', 'PROCESSING')),
    ready INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    max_attempts INTEGER,
    worker_id TEXT,
    token TEXT,
    lock_key TEXT,
    has_results INTEGER NOT NULL,
    waiting_fence INTEGER,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    due_at REAL NOT NULL,
    processing_started_at REAL,
    started_at REAL,
    lease_expires_at REAL,
    parent_id TEXT,
    idempotency_key TEXT,
    tags TEXT,
    metadata TEXT,
    errors TEXT,
    payload TEXT NOT NULL,
    ordering_key TEXT GENERATED ALWAYS AS (
        CASE WHEN json_valid(metadata) AND json_type(metadata, '$.ordering_key') = 'text'
        THEN nullif(json_extract(metadata, '$.ordering_key'), '') END
    ) VIRTUAL
) STRICT;

CREATE INDEX events_ready ON events (bus, priority DESC, id, ready) WHERE ready = 1;
CREATE INDEX events_delayed ON events (bus, due_at, id, ready, status) WHERE ready = 0 AND status = 'PENDING';
CREATE INDEX events_leased ON events (bus, lease_expires_at, id, status) WHERE status = 'PROCESSING';
CREATE INDEX events_token ON events (token) WHERE token IS NOT NULL;
CREATE INDEX events_parent ON events (parent_id) WHERE parent_id IS NOT NULL;

-- Events of one ordering key run one after the other. A claim that finds an event which is not the first of its key
-- defers it (ready = 2). When the event before it ends or is set back, a trigger brings the first event of the key back
-- (ready = 0: the next claim makes it ready). Events without a key are not affected.
CREATE INDEX events_ordering_key ON events (bus, ordering_key, status, id) WHERE ordering_key IS NOT NULL;
CREATE INDEX events_deferred ON events (bus, id, ready) WHERE ready = 2;

CREATE TRIGGER events_ordering_key_left AFTER DELETE ON events WHEN OLD.ordering_key IS NOT NULL
BEGIN
    UPDATE events SET ready = 0
    WHERE ready = 2 AND id = (
        SELECT min(id) FROM events
        WHERE bus = OLD.bus AND ordering_key = OLD.ordering_key AND status = 'PENDING'
    );
END;

-- Only a statement that sets due_at returns an event to the queue.
CREATE TRIGGER events_ordering_key_returned AFTER UPDATE OF due_at ON events WHEN NEW.ordering_key IS NOT NULL
BEGIN
    UPDATE events SET ready = 0
    WHERE ready = 2 AND id = (
        SELECT min(id) FROM events
        WHERE bus = NEW.bus AND ordering_key = NEW.ordering_key AND status = 'PENDING'
    );
END;

-- An event that waits for its children has waiting_fence = fence, and not any more once it is claimed again. When its
-- last live child leaves, it is due since its release, and gets waiting_fence = 0 until its workers are woken. Events
-- without a parent are not affected.
CREATE INDEX events_woken ON events (bus, waiting_fence) WHERE waiting_fence = 0;

CREATE TRIGGER events_child_left AFTER DELETE ON events WHEN OLD.parent_id IS NOT NULL
BEGIN
    UPDATE events SET due_at = updated_at, waiting_fence = 0
    WHERE id = (SELECT id FROM event_log WHERE event_id = OLD.parent_id AND known = 1)
        AND status = 'PENDING' AND waiting_fence = fence
        AND NOT EXISTS (SELECT 1 FROM events AS child WHERE child.parent_id = OLD.parent_id);
END;

CREATE TABLE event_tags (
    bus TEXT NOT NULL,
    tag TEXT NOT NULL,
    priority INTEGER NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (bus, tag, priority DESC, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letters (
    id INTEGER PRIMARY KEY,
    bus TEXT NOT NULL,
    type TEXT NOT NULL,
    event_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('COMPLETED_WITH_ERRORS', 'FAILED')),
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    max_attempts INTEGER,
    worker_id TEXT,
    has_results INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    due_at REAL NOT NULL,
    processing_started_at REAL,
    started_at REAL,
    parent_id TEXT,
    idempotency_key TEXT,
    tags TEXT,
    metadata TEXT,
    errors TEXT,
    payload TEXT NOT NULL
) STRICT;

CREATE INDEX dead_letters_created ON dead_letters (created_at, id);
CREATE INDEX dead_letters_bus ON dead_letters (bus, created_at, id, status);
CREATE INDEX dead_letters_parent ON dead_letters (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE event_log (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    bus TEXT NOT NULL,
    type TEXT NOT NULL,
    action TEXT NOT NULL,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    worker_id TEXT,
    token TEXT,
    at REAL NOT NULL,
    created_at REAL NOT NULL,
    error TEXT,
    reason TEXT,
    next_retry_at REAL,
    execution_time_ms REAL,
    status_code INTEGER,
    known INTEGER,
    completed INTEGER,
    priority INTEGER,
    max_attempts INTEGER,
    due_at REAL,
    processing_started_at REAL,
    started_at REAL,
    idempotency_key TEXT,
    parent_id TEXT,
    tags TEXT,
    metadata TEXT,
    errors TEXT,
    results TEXT,
    payload TEXT
) STRICT;

CREATE UNIQUE INDEX event_log_published ON event_log (event_id) WHERE known = 1;
CREATE INDEX event_log_event ON event_log (id) WHERE action <> 'PUBLISHED';
CREATE INDEX event_log_completed ON event_log (bus, id, at, completed) WHERE completed = 1;
CREATE INDEX event_log_parent ON event_log (parent_id) WHERE completed = 1 AND parent_id IS NOT NULL;

-- The number of live events of a bus, and of ended ones by status. Each transaction writes what it changes, so that no
-- query counts a large table. A bus without events has no row.
CREATE TABLE event_counts (
    bus TEXT PRIMARY KEY,
    live INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    completed_with_errors INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER event_counts_none AFTER UPDATE ON event_counts
WHEN NEW.live = 0 AND NEW.completed = 0 AND NEW.completed_with_errors = 0 AND NEW.failed = 0 AND NEW.cancelled = 0
BEGIN
    DELETE FROM event_counts WHERE bus = NEW.bus;
END;

CREATE TABLE idempotency_keys (
    bus TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (bus, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE event_results (
    result_id INTEGER PRIMARY KEY,
    id INTEGER NOT NULL,
    handler_id TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    worker_id TEXT,
    token TEXT,
    settled_token TEXT,
    lock_key TEXT,
    lease_expires_at REAL,
    execution_time_ms REAL,
    error TEXT,
    value TEXT,
    UNIQUE (id, handler_id)
) STRICT;

CREATE INDEX event_results_offered ON event_results (handler_id, lease_expires_at, id, status)
    WHERE lease_expires_at IS NOT NULL AND status IN ('PENDING', 'PROCESSING');
CREATE INDEX event_results_token ON event_results (token, id) WHERE token IS NOT NULL;
CREATE INDEX event_results_locked ON event_results (lock_key, lease_expires_at) WHERE lock_key IS NOT NULL;
-- The waits. All other results stay out of this index.
CREATE INDEX event_results_waiting ON event_results (value ->> '$.shape', value ->> '$.key', id)
WHERE status = 'WAITING';

CREATE TABLE locks (
    key TEXT PRIMARY KEY,
    fence INTEGER NOT NULL,
    worker_id TEXT NOT NULL,
    token TEXT,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX locks_expires ON locks (expires_at);

CREATE TABLE event_buses (
    bus TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    last_seen_at REAL NOT NULL,
    stopped_at REAL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX event_buses_stopped ON event_buses (stopped_at) WHERE stopped_at IS NOT NULL;

CREATE TABLE event_handlers (
    bus TEXT NOT NULL,
    handler_id TEXT NOT NULL,
    node TEXT NOT NULL,
    pattern TEXT NOT NULL,
    created_at REAL NOT NULL,
    last_seen_at REAL NOT NULL,
    kept_until REAL,
    PRIMARY KEY (bus, handler_id, node)
) STRICT, WITHOUT ROWID;

CREATE VIEW subscriptions AS
SELECT handler_id AS id, pattern AS event_type, min(created_at) AS created_at
FROM event_handlers GROUP BY bus, handler_id, pattern;

CREATE TABLE positions (
    name TEXT PRIMARY KEY,
    position TEXT NOT NULL,
    updated_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value) VALUES ('forgotten_event_id', 0), ('handler_news', 0), ('lock_fence', 0), ('revision', 0);
