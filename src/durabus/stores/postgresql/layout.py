"""The tables of the PostgreSQL store, drawn. All of them are in one schema, ``durabus`` unless the URL says otherwise.

::

    publish ──> ┌───────────────────────────┐ <── requeue ── ┌──────────────┐
    claim   <─> │ events                    │                │ dead_letters │ FAILED, COMPLETED_WITH_ERRORS:
                │ PENDING, PROCESSING:      │ ── settle ───> │              │ here until requeued or purged
                │ small, whatever happened  │                └──────────────┘
                └───────────────────────────┘
                   │ every transition, in the same transaction
                   ▼
    ┌──────────────────────────┐ known: the event_id is taken, as long as the event is remembered.
    │ published                │ Uniqueness needs one table, so these entries are not kept by days
    ├──────────────────────────┤
    │ event_log, by days       │ completed: the COMPLETED entry that *is* the event from now on
    │ event_log_20260101 …     │ (payload, errors, results), until trimmed or removed
    │ event_log_rest           │ what belongs to no day
    └──────────────────────────┘
      both ordered by (tx, position): the number of a transaction (see log_transaction), and one of the entry.
      Readable is what lies below the oldest transaction that still runs: nothing can be committed there any more, so
      nothing is skipped

    lane 1  events_fresh      (bus, -priority, id)      never claimed, due at once, priority 0: what a claim walks, from
                                                        a floor on if a kept-open transaction forbids cleaning up
    lane 2  events_returned   (bus, -priority, id)      all others that may be claimed: a short list beside it
    lane 3  events_line       (bus, key, status, id)    put aside behind another one of its ordering key
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
    event_results        (id, handler_id)                 only where a handler left news; events.has_results says so
    locks                key -> fence, token, expires_at  event:global, event:bus:…, handler:event:…, and callers' own
    event_counts         how many events of each status a bus has, and event_count_notes: what changed since
    event_buses, event_handlers, positions                registrations; how far readers of the log have come
    subscriptions        a view of event_handlers under the names of seed 003
    installation         tells this schema from one of the same name in another database
    durabus_migrations, durabus_objects                   the steps that were applied, and what they made
    sequences            event_ids, lock_fences, handler_revisions: never repeat; log_positions

Connections of one store object: a pool on the event loop of ``open()``, and, once they are needed, two for calls from
other loops and one that listens, in a thread of the store's own.
"""
