"""Waits: a settlement finds events that are stored already, and a claim looks once more for new waits.

The function ``meet_waits`` lets a new event meet the waits for it. It does not see a wait whose transaction is not
committed, and the transaction of the wait does not see an event that is not committed. So each new wait is noted, with
what it has seen. Once no transaction can have missed it, a claim on its bus looks once more: at the events that the
wait had not seen. They were stored after it, whatever their ids: ids do not have the order of commits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.lifecycle.waits import StoredMatches, has_waits
from durabus.model.claim import ClaimRef
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Release, Settlement
from durabus.model.statuses import ResultStatus
from durabus.model.wait import memo_of
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.layout import columns
from durabus.stores.postgresql.publishing import get_events
from durabus.stores.sql.changes import StoredEvent
from durabus.stores.sql.rows import event_of

LOOKED_AT = 1_000
"""Number of stored events that a search reads at once."""


class Snapshot(msgspec.Struct, frozen=True):
    """What a transaction sees: all that was committed below ``xmax``, except by transactions that were ``open``."""

    xmax: int
    open: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """Return a snapshot from the text that PostgreSQL writes: ``xmin:xmax:open,open``."""
        _, xmax, listed = text.split(":")
        return cls(int(xmax), frozenset(int(number) for number in listed.split(",") if number))

    def sees(self, transaction: int) -> bool:
        """Whether this transaction had been committed."""
        return transaction < self.xmax and transaction not in self.open


async def with_stored(
    session: PostgreSQLSession, settlements: Sequence[Settlement], states: dict[int, StoredEvent]
) -> Sequence[Settlement]:
    """Return settlements with those of their waits met for which an event is stored. Notes the new waits before."""
    if not has_waits(settlements):
        return settlements
    known = [(id_, result.handler_id) for id_, stored in states.items() for result in stored.state.results]
    matches = StoredMatches(settlements, known)
    new = [
        (bus, id_, handler_id)
        for bus, type_ in matches.after
        for id_, handler_id in matches.of(bus, type_)
        if id_ in states
    ]
    if new:
        await session.all("note_waits", *columns(new))
    for (bus, type_), first in matches.after.items():
        after: int | None = first
        while after is not None:
            found = [event_of(row) for row in await session.all("stored_events", bus, type_, after, LOOKED_AT)]
            matches.look_at(found)
            after = found[-1].id if len(found) == LOOKED_AT else None
    return matches.settlements()


async def check_waits(session: PostgreSQLSession, bus: str) -> None:
    """Look once more for the events of new waits of a bus, as soon as no publisher can have missed them."""
    rows = await session.all("waits_to_check", bus)
    await session.all("note_horizon", bus)
    if not rows:
        return
    waits = [
        Release(
            ClaimRef(id_, "", 0),
            results=(HandlerResult(handler_id=handler_id, status=ResultStatus.WAITING, value_json=value),),
        )
        for id_, handler_id, value, _, _ in rows
    ]
    began = {(id_, handler_id): Snapshot.of(text) for id_, handler_id, _, text, _ in rows}
    matches = StoredMatches(waits, ())
    stored = await _stored_unseen(session, bus, matches, list(began.values()), max(int(row[4]) for row in rows))
    events = await get_events(session, stored)

    def is_later(id_: int, handler_id: str, event: Event) -> bool:
        return event.id != id_ and not began[id_, handler_id].sees(stored[event.id])

    matches.look_at(events.values(), is_later)
    met = sorted((id_, handler_id, memo_of(event)) for (id_, handler_id), event in matches.found.items())
    if met:
        await session.all("meet_found_waits", *columns(met))


async def _stored_unseen(
    session: PostgreSQLSession, bus: str, matches: StoredMatches, began: Sequence[Snapshot], horizon: int
) -> dict[int, int]:
    """Return events that some of the waits had not seen, each with the transaction that stored it."""
    types = [type_ for _, type_ in matches.after]
    were_open = sorted(set().union(*(snapshot.open for snapshot in began)))
    rows = await session.all(
        "stored_unseen",
        bus,
        types,
        [str(number) for number in were_open],
        str(min(snapshot.xmax for snapshot in began)),
        str(horizon),
    )
    return {row[0]: row[1] for row in rows}
