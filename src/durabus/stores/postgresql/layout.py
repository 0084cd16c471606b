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
    │ event_log, partitioned   │ completed: the COMPLETED or CANCELLED entry that *is* the event from now on
    │ event_log_20260101 …     │ (payload, errors, results), until trimmed or removed
    │ event_log_rest           │ entries that fit no daily partition
    └──────────────────────────┘
      both ordered by (tx, position): the number of a transaction (see log_transaction), and one of the entry.
      Readers stop below the oldest transaction that still runs. No transaction can commit an entry below that point,
      so a reader skips none

    events.queue_part says in which part of the queue of its bus a PENDING event is: 0 delayed, 1 fresh, 2 returned,
    3 deferred. A PROCESSING event has 0.

          1 events_fresh      (bus, -priority, id)      never claimed, due at once, priority 0: what a claim walks. It
                                                        starts at a floor while an old transaction blocks vacuum
          2 events_returned   (bus, -priority, id)      all others that may be claimed: a short list beside it
          3 events_ordering_key (bus, key, status, id)  deferred behind another event of its ordering key
          0 events_delayed    (bus, due_at)             PENDING: what a claim moves to part 2 first
            events_leased     (bus, lease_expires_at)   PROCESSING: what a claim takes back first
            events_id         (id), unique              settling, renewing; no primary key, see the migration
            events_token      (token)                   the repeat of a claim, the claims of a process
            events_tags       tags, GIN                 claims by a rare tag
            published_event   (event_id), unique        known: publishing twice stores one; get_event by name
            event_log_event   (id)                      the trail of an event, its last settlement
            event_log_completed (bus, id)               completed: find, trim
            *_position        (tx, position)            readers of the log
            event_results_offered (handler_id, lease_expires_at)  offered handlers, and those under a claim
            event_results_token (token)                 the repeat of a claim on offered handlers
            event_results_locked (lock_key, lease_expires_at)  handlers that keep the lock of a serial mode
            *_parent          (parent_id)               children; the last one to end wakes a parent that waits

    idempotency_keys     (bus, idempotency_key) -> id     as long as the event is known
    event_results        (id, handler_id)                 only if a handler reported; events.has_results says so
                         event_results_waiting            WAITING: waits by bus, type, names of fields, and values
    unchecked_waits      (bus, id, handler_id)            new waits, until no publisher can have missed them
    event_log.results    the results at the end           a JSON list, or a JSON string: the only handler, which
                                                          succeeded at its first call in execution_time_ms
    locks                key -> fence, token, expires_at  event:global, event:bus:…, handler:event:…, and callers' own
    event_counts         how many events of each status a bus has, and event_count_notes: what changed since
    event_buses, event_handlers, positions                registrations; saved positions of log readers
    processes            processes that hold the advisory lock of their incarnation as long as they live
    subscriptions        a view of event_handlers with the column names of the design document
    installation         tells this schema from one of the same name in another database
    durabus_migrations, durabus_objects                   the steps that were applied, and what they made
    sequences            event_ids, lock_fences, handler_revisions, log_positions: no value returns

Connections of one store object: a pool on the event loop that called ``open()``. The store opens three more in its own
thread when they are needed: two for calls from other event loops, and one that listens for notifications.

Below stand the statements of ``statements/<part>.sql`` by name, with their schema and lists of columns filled in.
A statement names its tables as ``{schema}.events``: the store cannot rely on the search path of a caller's connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from durabus.stores.sql.rows import Row
from durabus.stores.sql.statements import statements


def _instant(column: str) -> str:
    return f"date_part('epoch', {column})"


_EVENT_HEAD = (
    "id, event_id::text, bus, type, payload, metadata, array_to_json(tags)::text, priority, max_attempts, "
    "parent_id::text, idempotency_key, status"
)
_EVENT_REST = (
    f"generation, fence, worker_id, errors, {_instant('created_at')}, {_instant('updated_at')}, {_instant('due_at')}, "
    f"{_instant('processing_started_at')}, {_instant('started_at')}"
)

COLUMNS = {
    # the order that rows.event_of unpacks
    "{event}": f"{_EVENT_HEAD}, attempts, {_EVENT_REST}, {_instant('lease_expires_at')}",
    "{dead_letter}": f"{_EVENT_HEAD}, attempts, {_EVENT_REST}, NULL::double precision",
    "{completed}": (
        "id, event_id::text, bus, type, payload, metadata, tags, priority, max_attempts, parent_id::text, "
        f"idempotency_key, status, attempt, generation, fence, worker_id, errors, {_instant('created_at')}, "
        f"{_instant('at')}, {_instant('due_at')}, {_instant('processing_started_at')}, {_instant('started_at')}, "
        "NULL::double precision"
    ),
    # the order that rows.entry_of unpacks, and that of LOG_COLUMNS
    "{entry}": (
        "to_hex(tx::text::bigint) || '-' || to_hex(position), action, id, event_id::text, bus, type, status, "
        f"{_instant('at')}, {_instant('created_at')}, attempt, generation, fence, worker_id, error, reason, "
        f"{_instant('next_retry_at')}, execution_time_ms, status_code, tags, metadata, parent_id::text, payload, "
        "errors, results"
    ),
    "{log_columns}": (
        "tx, position, action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, worker_id, "
        "error, reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, "
        "results"
    ),
    "{published_columns}": (
        "tx, position, 'PUBLISHED' AS action, id, event_id, bus, type, 'PENDING' AS status, at, at AS created_at, "
        "0 AS attempt, 0 AS generation, 0::bigint AS fence, NULL::text AS worker_id, NULL::text AS error, "
        "NULL::text AS reason, "
        "NULL::timestamptz AS next_retry_at, NULL::double precision AS execution_time_ms, "
        "NULL::integer AS status_code, tags, metadata, parent_id, NULL::text AS payload, NULL::text AS errors, "
        "NULL::text AS results"
    ),
    # the order that rows.handler_of unpacks
    "{result}": (
        "handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, "
        f"{_instant('lease_expires_at')}, token, settled_token, lock_key"
    ),
}


@cache
def _text(name: str) -> str:
    bare = statements(__package__)[name]
    for placeholder, columns in COLUMNS.items():
        bare = bare.replace(placeholder, columns)
    return bare.replace("{actual_objects}", _text("actual_objects")) if "{actual_objects}" in bare else bare


class Statements:
    """The statements for one schema, by name."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the statement of this name for this schema."""
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _text(name).replace("{schema}", f'"{self.schema}"')
        return made


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """Return rows as the arrays that ``unnest`` takes."""
    return [list(column) for column in zip(*rows, strict=True)]


def instant(seconds: float) -> float:
    """Return an instant as PostgreSQL will return it: it keeps microseconds."""
    return round(seconds, 6)
