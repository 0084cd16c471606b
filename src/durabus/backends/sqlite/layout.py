"""The tables of the SQLite store, drawn.

::

    publish                        claim                       settle
    ───────┐                ┌─────────────────┐         ┌───────────────────────────┐
           ▼                ▼                 │         ▼                           │
    ┌────────────────────────────────────────┐│  ┌──────────────┐  FAILED, COMPLETED_WITH_ERRORS
    │ events          PENDING, PROCESSING     ││  │ dead_letters │  ◄── until requeued or purged
    │  id, bus, type, event_id, status, ready,│┘  └──────────────┘
    │  priority, attempts, generation, fence, │         │ requeue: back into events
    │  token, lease_expires_at, due_at, …     │◄────────┘
    └────────────────────────────────────────┘
       │ events_ready    (bus, priority DESC, id)   ready = 1           what a claim walks
       │ events_delayed  (bus, due_at)              ready = 0, PENDING   what a claim makes ready first
       │ events_leased   (bus, lease_expires_at)    PROCESSING           what a claim takes back first
       │ events_token    (token)                                         the repeat of a claim
       │ events_parent   (parent_id)
       ▼
    ┌────────────────────────────────────────┐  one row for each transition, never changed; position = cursor
    │ event_log       position, id, action, … │  the COMPLETED row carries payload, errors, results: it *is* the event
    │                 completed = 1           │  from then on (find, get_event), until it is trimmed or removed
    └────────────────────────────────────────┘
       │ event_log_event (id)   event_log_completed (bus, id, at)   event_log_parent (parent_id)

    event_ids          event_id -> id                     outlives the stay in events: publishing twice stores one
    idempotency_keys   (bus, idempotency_key) -> id       the same for keys
    event_tags         (bus, tag, priority DESC, id)      only events that are ready: what a claim by tag walks
    event_results      (id, handler_id)                   only where a handler left news; events.has_results says so
    locks              key -> fence, token, expires_at    event:global, event:bus:…, handler:event:…, and callers' own
    counters           lock_fence: one count for all locks, so a forgotten lock repeats none
                       forgotten_event_id: the largest id that was trimmed, so no id comes back
    event_buses, event_handlers, positions                registrations; how far readers of the log have come
    subscriptions      a view of event_handlers under the names of seed 003
    durabus_migrations which steps of migrations/ were applied, with their checksums

Beside the file: ``-wal`` and ``-shm`` belong to SQLite, ``-durabus.lock`` is the write lock between processes.

Threads of one store object: the writer (group commit), the reader (snapshots), and, once they are needed, one that is
told by the kernel when another process writes (``notice``) and one that gives up on a frozen lock holder (``turn``).
"""
