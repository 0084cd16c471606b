"""The tables of the SQLite store, drawn.

::

    publish ──> ┌───────────────────────────┐ <── requeue ── ┌──────────────┐
    claim   <─> │ events                    │                │ dead_letters │ FAILED, COMPLETED_WITH_ERRORS:
                │ PENDING, PROCESSING:      │ ── settle ───> │              │ here until requeued or purged
                │ small, whatever happened  │                └──────────────┘
                └───────────────────────────┘
                              │ every transition, in the same transaction
                              ▼
                ┌───────────────────────────┐ position = the reader's cursor, grows in commit order
                │ event_log                 │ known = 1      the PUBLISHED entry of an event that still exists
                │ append-only               │ completed = 1  the COMPLETED or CANCELLED entry that *is* the event from
                └───────────────────────────┘                now on (payload, errors, results), until trimmed or removed

    events_ready         (bus, priority DESC, id)   ready = 1            what a claim walks
    events_delayed       (bus, due_at)              ready = 0, PENDING   what a claim makes ready first
    events_leased        (bus, lease_expires_at)    PROCESSING           what a claim takes back first
    events_ordering_key  (bus, ordering_key, status, id)                 finds the first event of an ordering key
    events_deferred      (bus, id)                  ready = 2            waits behind its key; found with the live ones
    events_woken         (bus)                      waiting_fence = 0    parents whose last child has just ended
    events_token         (token)                                         the repeat of a claim, the claims of a process
    event_results_token  (token)                    a held handler       the handler claims of a process
    event_log_published  (event_id), unique         known = 1            publishing twice stores one; get_event by name
    event_log_event      (id)                       not PUBLISHED        the trail of an event, its last settlement
    event_log_completed  (bus, id, at)              completed = 1        find and trim what is done
    event_results_offered  (handler_id, lease_expires_at)                offered handlers, and those under a claim
    event_results_token  (token)                                         the repeat of a claim on offered handlers
    event_results_locked  (lock_key, lease_expires_at)                   handlers that keep the lock of a serial mode
    *_parent             (parent_id)                                     children

    event_counts         bus -> how many events it has    every transaction updates it; no query counts rows
    idempotency_keys     (bus, idempotency_key) -> id     as long as the event is known
    event_tags           (bus, tag, priority DESC, id)    only events that are ready: what a claim by tag walks
    event_results        (id, handler_id)                 only if a handler reported; events.has_results says so
                         event_results_waiting            WAITING: waits by bus, type, names of fields, and values
    event_log.results    the results at the end           a JSON list, or a JSON string: the only handler, which
                                                          succeeded at its first call in execution_time_ms
    locks                key -> fence, token, expires_at  event:global, event:bus:…, handler:event:…, and callers' own
    counters             lock_fence: one counter for all locks, so a deleted lock never repeats a fence;
                         revision: one counter for the handler lists of all buses, for the same reason;
                         handler_news: how often handlers were offered or settled; it wakes workers of other processes;
                         forgotten_event_id: the largest id that was trimmed, purged or removed: no id is reused
    event_buses, event_handlers, positions                registrations; saved positions of log readers
    subscriptions        a view of event_handlers with the column names of the design document
    durabus_migrations   the steps of migrations/ that were applied, with their checksums

Beside the file: ``-wal`` and ``-shm`` belong to SQLite, ``-durabus.lock`` is the write lock between processes and
holds the latest instant that any process has written (``file_locks.StoreTime``). A process that has the store open
holds locks on the database file itself and on ``-shm`` (``file_locks.Presence``). A process that works on events also
locks one byte far behind the end of the database file, at the place that its incarnation names (``processes``).

Threads of one store object: the writer (group commit) and the reader (snapshots). Two more start when they are needed:
one waits for inotify to report a write of another process (``wakeup``), one fails the calls that wait for a frozen
holder of the write lock (``writer.WriteLockWait``).

Below stand the statements of ``statements/<part>.sql`` by name, with their lists of columns filled in.
"""

from __future__ import annotations

from durabus.stores.sql.statements import statements

_EVENT_HEAD = (
    "id, event_id, bus, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key, status"
)

COLUMNS = {
    # the order that rows.event_of unpacks
    "{event}": f"{_EVENT_HEAD}, attempts, generation, fence, worker_id, errors, created_at, updated_at, due_at, "
    "processing_started_at, started_at, lease_expires_at",
    "{dead_letter}": f"{_EVENT_HEAD}, attempts, generation, fence, worker_id, errors, created_at, updated_at, due_at, "
    "processing_started_at, started_at, NULL",
    "{completed}": f"{_EVENT_HEAD}, attempt, generation, fence, worker_id, errors, created_at, at, due_at, "
    "processing_started_at, started_at, NULL",
    # the order that rows.entry_of unpacks, and that of LOG_COLUMNS
    "{entry}": (
        "CAST(position AS TEXT), action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, "
        "worker_id, error, reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, "
        "errors, results"
    ),
    # the order that rows.handler_of unpacks
    "{result}": "handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, "
    "token, settled_token, lock_key",
}


def _filled(text: str) -> str:
    for placeholder, columns in COLUMNS.items():
        text = text.replace(placeholder, columns)
    return text


SQL = {name: _filled(text) for name, text in statements(__package__).items()}
"""Every statement by its name, with its columns filled in."""
