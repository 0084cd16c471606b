"""Adds events, gets them by id, and keeps the numbers of events of each bus.

``add_events`` first writes a batch as if all its events were new. If one is known, it takes the batch back and
looks at each event.

Every transaction that changes these numbers writes the difference to ``event_counts``; no query counts rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from durabus.errors import SchemaError
from durabus.model.event import Event, NewEvent
from durabus.model.query import Counts
from durabus.model.statuses import EventStatus
from durabus.store.events import EventRef
from durabus.stores.sql.rows import Row, added_event, event_of, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.waits import meet_waits

_ENDED = (EventStatus.COMPLETED, EventStatus.COMPLETED_WITH_ERRORS, EventStatus.FAILED, EventStatus.CANCELLED)
"""The statuses in the order of the columns of ``event_counts``."""


def counts(tx: Transaction, bus: str | None) -> Counts:
    """Return the numbers of events of one bus, or of all."""
    row = tx.all(SQL["counts"] if bus is None else SQL["counts_of_bus"], {"bus": bus})[0]
    live, processing, completed, completed_with_errors, failed, cancelled = row
    return Counts(
        pending=live - processing,
        processing=processing,
        completed=completed,
        completed_with_errors=completed_with_errors,
        failed=failed,
        cancelled=cancelled,
    )


def note_live(tx: Transaction, numbers: Mapping[str, int]) -> None:
    """Add to the number of live events of each bus."""
    tx.many(SQL["note_counts"], [(bus, number, 0, 0, 0, 0) for bus, number in numbers.items()])


def note_ended(tx: Transaction, event: Event) -> None:
    """Count one event that ended in the status it has."""
    tx.run(SQL["note_counts"], (event.bus, -1, *(int(event.status is one) for one in _ENDED)))


def note_completed(tx: Transaction, count: int) -> None:
    """Count the events that ``complete_events`` has just written as COMPLETED."""
    tx.run(SQL["note_completed"], {"last": tx.cursor.lastrowid, "count": count})


def leave_queue(tx: Transaction, ids: Sequence[int]) -> None:
    """Remove events that have ended, or are deleted, from the queue. The last child of a parent wakes its workers."""
    before = tx.connection.total_changes
    gone = tx.run(SQL["leave_queue"], {"ids": to_json(ids)})
    if tx.connection.total_changes - before > gone:  # a trigger has changed other events, too
        tx.woken.update(bus for (bus,) in tx.all(SQL["woken_parents"]))


def note_forgotten(tx: Transaction, gone: Iterable[tuple[str, str]]) -> None:
    """Subtract deleted events of the history (bus and status of each)."""
    numbers = Counter(gone)
    tx.many(
        SQL["note_counts"],
        [(bus, 0, *(-number * (status == one) for one in _ENDED)) for (bus, status), number in numbers.items()],
    )


def forget_dead_letters(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete dead letters that were purged, removed or requeued, and count them."""
    given = {"ids": to_json(ids)}
    tx.run(SQL["note_dead_gone"], given)
    tx.run(SQL["forget_dead_letters"], given)


_ROWS = 20


class _Insert:
    """The statement for one row, and for ``_ROWS`` of them."""

    def __init__(self, name: str) -> None:
        self.one = SQL[name]
        head, values, row = self.one.partition("VALUES ")
        self.several = head + values + ", ".join([row] * _ROWS)


_ADD = _Insert("add_events")
_ADD_PLAIN = _Insert("add_plain_events")
_UNDO = ("forget_added_entries", "forget_added_keys", "forget_added_events")
_GET = ("get_live_event", "get_dead_letter", "get_completed_event")


def add_events(tx: Transaction, new: Sequence[NewEvent]) -> list[Event]:
    """Store a batch of events. For an event that is stored already, return the stored one."""
    added = _add_unknown(tx, new)
    return _add_each(tx, new) if added is None else added


def get_event(tx: Transaction, ref: EventRef) -> Event | None:
    """Return the event in any status, or None."""
    id_ = tx.value(SQL["get_event_id"], (ref,)) if isinstance(ref, str) else ref
    if id_ is None or not 0 < id_ < 2**63:
        return None
    for name in _GET:
        row = tx.one(SQL[name], (id_,))
        if row is not None:
            return event_of(row)
    return None


def _add_unknown(tx: Transaction, new: Sequence[NewEvent]) -> list[Event] | None:
    """Store the whole batch in a few statements. Returns None and writes nothing if an id or key is known."""
    count, now = len(new), tx.now
    first: int = tx.value(SQL["last_event_id"]) + 1
    span = {"first": first, "last": first + count - 1}
    tagged = keyed = 0
    plain: list[Row] = []
    others: list[Row] = []
    for id_, one in enumerate(new, first):
        if (
            one.metadata_json is None
            and not one.tags
            and one.priority == 0
            and one.delay == 0
            and one.max_attempts is None
            and one.parent_id is None
            and one.idempotency_key is None
        ):
            plain.append((id_, one.event_id, one.bus, one.type, one.payload_json, now, now, now))
            continue
        tagged += bool(one.tags)
        keyed += one.idempotency_key is not None
        due = now + one.delay
        others.append((
            id_, one.event_id, one.bus, one.type, one.payload_json, one.metadata_json or "",
            to_json(one.tags) if one.tags else "", one.priority, one.max_attempts or 0, one.parent_id or "",
            one.idempotency_key or "", 1 if due <= now else 0, due, now, now,
        ))  # fmt: skip
    _insert(tx, _ADD_PLAIN, plain)
    _insert(tx, _ADD, others)
    if tx.run(SQL["log_published"], span) != count or (keyed and tx.run(SQL["add_idempotency_keys"], span) != keyed):
        for name in _UNDO:
            tx.run(SQL[name], span)
        return None
    if tagged:
        tx.run(SQL["add_event_tags"], span)
    numbers = Counter([one.bus for one in new])
    note_live(tx, numbers)
    tx.added.update(numbers)
    if any(one.delay for one in new):
        tx.woken.update(numbers)  # their workers plan to wake up when the events are due
    events = [added_event(one, id_, now, now + one.delay) for id_, one in enumerate(new, first)]
    meet_waits(tx, events)
    return events


def _insert(tx: Transaction, sql: _Insert, rows: list[Row]) -> None:
    """Insert several rows with each statement: half the cost of one by one."""
    end = len(rows) - len(rows) % _ROWS
    for start in range(0, end, _ROWS):
        tx.run(sql.several, tuple(chain.from_iterable(rows[start : start + _ROWS])))
    tx.many(sql.one, rows[end:])


def _add_each(tx: Transaction, new: Sequence[NewEvent]) -> list[Event]:
    """Find the events that are known, also by an earlier event of this batch, and store the others."""
    ids: dict[str, int | NewEvent] = dict(
        tx.all(SQL["known_event_ids"], {"event_ids": to_json([one.event_id for one in new])})
    )
    keys: dict[tuple[str, str], int | NewEvent] = {}
    unknown: list[NewEvent] = []
    found: list[int | NewEvent] = []
    for one in new:
        known = ids.get(one.event_id)
        key = None if one.idempotency_key is None else (one.bus, one.idempotency_key)
        if known is None and key is not None:
            known = keys.get(key) or tx.value(SQL["known_idempotency_key"], key)
        if known is None:
            known = one
            unknown.append(one)
            ids[one.event_id] = one
            if key is not None:
                keys[key] = one
        found.append(known)
    stored = {event.event_id: event for event in (unknown and _add_unknown(tx, unknown)) or ()}
    return [_known(tx, item) if isinstance(item, int) else stored[item.event_id] for item in found]


def _known(tx: Transaction, id_: int) -> Event:
    event = get_event(tx, id_)
    if event is None:
        raise SchemaError(
            f"event {id_} is remembered in event_log or idempotency_keys but stored nowhere: its row was deleted by "
            "hand; delete it there too (remove_event does both)"
        )
    return event
