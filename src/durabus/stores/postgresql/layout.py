"""The tables of the PostgreSQL store, drawn. All of them are in one schema, ``durabus`` unless the URL says otherwise.

::

    publish ──> ┌───────────────────────────┐ <── requeue ── ┌──────────────┐
    claim   <─> │ events                    │                │ dead_letters │ FAILED, COMPLETED_WITH_ERRORS:
                │ PENDING, PROCESSING:      │ ── settle ───> │              │ here until requeued or purged
                │ small, whatever happened  │                └──────────────┘
                └───────────────────────────┘
                   │ every transition, in the same transaction
                   ▼
    ┌──────────────────────────┐ known: the event_id is taken as long as the event exists.
    │ published                │ A unique index needs one table, so this one has no partitions
    ├──────────────────────────┤
    │ event_log, partitioned   │ completed: the COMPLETED entry that *is* the event from now on
    │ event_log_20260101 …     │ (payload, errors, results), until trimmed or removed
    │ event_log_rest           │ entries that fit no daily partition
    └──────────────────────────┘
      both ordered by (tx, position): the number of a transaction (see log_transaction), and one of the entry.
      Readers stop below the oldest transaction that still runs. No transaction can commit an entry below that point,
      so a reader skips none

    lane 1  events_fresh      (bus, -priority, id)      never claimed, due at once, priority 0: what a claim walks. It
                                                        starts at a floor while an old transaction blocks vacuum
    lane 2  events_returned   (bus, -priority, id)      all others that may be claimed: a short list beside it
    lane 3  events_ordering_key (bus, key, status, id)  deferred behind another event of its ordering key
    lane 0  events_delayed    (bus, due_at)             PENDING: what a claim moves to lane 2 first
            events_leased     (bus, lease_expires_at)   PROCESSING: what a claim takes back first
            events_id         (id), unique              settling, renewing; no primary key, see the migration
            events_token      (token)                   the repeat of a claim
            events_tags       tags, GIN                 claims by a rare tag
            published_event   (event_id), unique        known: publishing twice stores one; get_event by name
            event_log_event   (id)                      the trail of an event, its last settlement
            event_log_completed (bus, id)               completed: find, trim
            *_position        (tx, position)            readers of the log
            *_parent          (parent_id)               children

    idempotency_keys     (bus, idempotency_key) -> id     as long as the event is known
    event_results        (id, handler_id)                 only if a handler reported; events.has_results says so
    locks                key -> fence, token, expires_at  event:global, event:bus:…, handler:event:…, and callers' own
    event_counts         how many events of each status a bus has, and event_count_notes: what changed since
    event_buses, event_handlers, positions                registrations; saved positions of log readers
    subscriptions        a view of event_handlers with the column names of the design document
    installation         tells this schema from one of the same name in another database
    durabus_migrations, durabus_objects                   the steps that were applied, and what they made
    sequences            event_ids, lock_fences, handler_revisions, log_positions: no value returns

Connections of one store object: a pool on the event loop that called ``open()``. The store opens three more in its own
thread when they are needed: two for calls from other event loops, and one that listens for notifications.
"""
