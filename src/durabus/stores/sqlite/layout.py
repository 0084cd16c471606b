"""The tables of the SQLite store, drawn.

::

    publish ──> ┌───────────────────────────┐ <── requeue ── ┌──────────────┐
    claim   <─> │ events                    │                │ dead_letters │ FAILED, COMPLETED_WITH_ERRORS:
                │ PENDING, PROCESSING:      │ ── settle ───> │              │ here until requeued or purged
                │ small, whatever happened  │                └──────────────┘
                └───────────────────────────┘
                              │ every transition, in the same transaction
                              ▼
                ┌───────────────────────────┐ position = the reader's cursor, given in commit order
                │ event_log                 │ known = 1      the PUBLISHED entry of an event that is remembered
                │ append-only               │ completed = 1  the COMPLETED entry that *is* the event from now on
                └───────────────────────────┘                (payload, errors, results), until trimmed or removed

    events_ready         (bus, priority DESC, id)   ready = 1            what a claim walks
    events_delayed       (bus, due_at)              ready = 0, PENDING   what a claim makes ready first
    events_leased        (bus, lease_expires_at)    PROCESSING           what a claim takes back first
    events_line          (bus, ordering_key, status, id)                 the first of its key; ready = 2 are behind
    events_aside         (bus, id)                  ready = 2            found with the live ones
    events_token         (token)                                         the repeat of a claim
    event_log_published  (event_id), unique         known = 1            publishing twice stores one; get_event by name
    event_log_event      (id)                       not PUBLISHED        the trail of an event, its last settlement
    event_log_completed  (bus, id, at)              completed = 1        find and trim what is done
    *_parent             (parent_id)                                     children

    event_counts         bus -> how many events it has    kept by every transaction, so that nobody counts
    idempotency_keys     (bus, idempotency_key) -> id     as long as the event is known
    event_tags           (bus, tag, priority DESC, id)    only events that are ready: what a claim by tag walks
    event_results        (id, handler_id)                 only where a handler left news; events.has_results says so
    locks                key -> fence, token, expires_at  event:global, event:bus:…, handler:event:…, and callers' own
    counters             lock_fence: one count for all locks, so that a forgotten lock repeats none;
                         revision: one count for the handler lists of all buses, for the same reason;
                         forgotten_event_id: the largest id that was trimmed, purged or removed, so that none returns
    event_buses, event_handlers, positions                registrations; how far readers of the log have come
    subscriptions        a view of event_handlers under the names of seed 003
    durabus_migrations   the steps of migrations/ that were applied, with their checksums

Beside the file: ``-wal`` and ``-shm`` belong to SQLite, ``-durabus.lock`` is the write lock between processes and
carries the latest instant that was written (``store_time``). That a process has the store open is told by locks on the
database file itself and on ``-shm`` (``presence``).

Threads of one store object: the writer (group commit), the reader (snapshots), and, once they are needed, one that is
told by the kernel when another process writes (``notice``) and one that gives up on a frozen lock holder (``turn``).
"""
