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
                │ append-only               │ completed = 1  the COMPLETED entry that *is* the event from now on
                └───────────────────────────┘                (payload, errors, results), until trimmed or removed

    events_ready         (bus, priority DESC, id)   ready = 1            what a claim walks
    events_delayed       (bus, due_at)              ready = 0, PENDING   what a claim makes ready first
    events_leased        (bus, lease_expires_at)    PROCESSING           what a claim takes back first
    events_ordering_key  (bus, ordering_key, status, id)                 finds the first event of an ordering key
    events_deferred      (bus, id)                  ready = 2            waits behind its key; found with the live ones
    events_token         (token)                                         the repeat of a claim
    event_log_published  (event_id), unique         known = 1            publishing twice stores one; get_event by name
    event_log_event      (id)                       not PUBLISHED        the trail of an event, its last settlement
    event_log_completed  (bus, id, at)              completed = 1        find and trim what is done
    *_parent             (parent_id)                                     children

    event_counts         bus -> how many events it has    every transaction updates it; no query counts rows
    idempotency_keys     (bus, idempotency_key) -> id     as long as the event is known
    event_tags           (bus, tag, priority DESC, id)    only events that are ready: what a claim by tag walks
    event_results        (id, handler_id)                 only if a handler reported; events.has_results says so
    locks                key -> fence, token, expires_at  event:global, event:bus:…, handler:event:…, and callers' own
    counters             lock_fence: one counter for all locks, so a deleted lock never repeats a fence;
                         revision: one counter for the handler lists of all buses, for the same reason;
                         forgotten_event_id: the largest id that was trimmed, purged or removed: no id is reused
    event_buses, event_handlers, positions                registrations; saved positions of log readers
    subscriptions        a view of event_handlers with the column names of the design document
    durabus_migrations   the steps of migrations/ that were applied, with their checksums

Beside the file: ``-wal`` and ``-shm`` belong to SQLite, ``-durabus.lock`` is the write lock between processes and
holds the latest instant that any process has written (``store_time``). A process that has the store open holds locks
on the database file itself and on ``-shm`` (``file_locks.Presence``).

Threads of one store object: the writer (group commit) and the reader (snapshots). Two more start when they are needed:
one waits for inotify to report a write of another process (``wakeup``), one fails the calls that wait for a frozen
holder of the write lock (``writer.WriteLockWait``).
"""
