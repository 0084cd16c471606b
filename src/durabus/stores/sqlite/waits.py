"""Waits: the step that stores an event meets the waits for it; a settlement also finds events that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from durabus.lifecycle.waits import StoredMatches, has_waits, is_met_by, key_in
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Settlement
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.model.wait import memo_of, names_of, prefix_of, wait_of
from durabus.stores.sql.rows import event_of, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.layout import SQL

LOOKED_AT = 1_000
"""Number of stored events that a search reads at once."""
_STORED = ("stored_live", "stored_dead", "stored_completed")


def meet_waits(tx: Transaction, events: Iterable[Event]) -> None:
    """Let new events meet the waits for them. Without any wait in the store, this is one probe of an index."""
    if not tx.value(SQL["any_waits"]):
        return
    shapes: dict[str, list[str]] = {}
    for event in events:
        prefix = prefix_of(event.bus, event.type)
        if prefix not in shapes:
            shapes[prefix] = [shape for (shape,) in tx.all(SQL["shapes_of_waits"], {"prefix": prefix})]
        for shape in shapes[prefix]:
            key = key_in(event, names_of(shape))
            if key is not None:
                _meet(tx, event, shape, key)


def _meet(tx: Transaction, event: Event, shape: str, key: str) -> None:
    for id_, handler_id, value, bus, status in tx.all(SQL["waiters"], {"shape": shape, "key": key, "id": event.id}):
        result = HandlerResult(handler_id=handler_id, status=ResultStatus.WAITING, value_json=value)
        if is_met_by(wait_of(result), id_, event):
            tx.run(SQL["meet_wait"], (memo_of(event), id_, handler_id))
            if status == EventStatus.PENDING:
                tx.run(SQL["wake_waiting_event"], (id_,))
                tx.woken.add(bus)


def with_stored(tx: Transaction, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
    """Return settlements with those of their waits met for which an event is stored."""
    if not has_waits(settlements):
        return settlements
    ids = [one.ref.id for one in settlements]
    matches = StoredMatches(settlements, tx.all(SQL["known_results"], {"ids": to_json(ids)}))
    for (bus, type_), first in matches.after.items():
        for name in _STORED:
            after: int | None = first
            while after is not None:
                given = {"bus": bus, "type": type_, "after": after, "limit": LOOKED_AT}
                found = [event_of(row) for row in tx.all(SQL[name], given)]
                matches.look_at(found)
                after = found[-1].id if len(found) == LOOKED_AT else None
    return matches.settlements()
