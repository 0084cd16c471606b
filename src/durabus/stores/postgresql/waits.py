"""Waits: a settlement finds events that are stored already, and a claim looks once more for new waits.

The function ``meet_waits`` lets a new event meet the waits for it. It does not see a wait whose transaction is not
committed, and the transaction of the wait does not see an event that is not committed. So each new wait is noted; once
no transaction can have missed it, a claim on its bus looks for stored events once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from durabus.lifecycle.waits import StoredMatches, has_waits
from durabus.model.claim import ClaimRef
from durabus.model.result import HandlerResult
from durabus.model.settlement import Release, Settlement
from durabus.model.statuses import ResultStatus
from durabus.model.wait import memo_of
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.layout import columns
from durabus.stores.sql.changes import StoredEvent
from durabus.stores.sql.rows import event_of

LOOKED_AT = 1_000
"""Number of stored events that a search reads at once."""


async def with_stored(
    session: PostgreSQLSession, settlements: Sequence[Settlement], states: dict[int, StoredEvent]
) -> Sequence[Settlement]:
    """Return settlements with those of their waits met for which an event is stored. Notes the other new waits."""
    if not has_waits(settlements):
        return settlements
    known = [(id_, result.handler_id) for id_, stored in states.items() for result in stored.state.results]
    matches = StoredMatches(settlements, known)
    await _look(session, matches)
    unmet = [
        (bus, id_, handler_id)
        for bus, type_ in matches.after
        for id_, handler_id in matches.of(bus, type_)
        if (id_, handler_id) not in matches.found and id_ in states
    ]
    if unmet:
        await session.all("note_waits", *columns(unmet))
    return matches.settlements()


async def check_waits(session: PostgreSQLSession, bus: str) -> None:
    """Look once more for the events of new waits of a bus, as soon as no publisher can have missed them."""
    rows = await session.all("waits_to_check", bus)
    await session.all("note_horizon", bus)
    waits = [
        Release(
            ClaimRef(id_, "", 0),
            results=(HandlerResult(handler_id=handler_id, status=ResultStatus.WAITING, value_json=value),),
        )
        for id_, handler_id, value in rows
    ]
    matches = StoredMatches(waits, ())
    await _look(session, matches)
    met = sorted((id_, handler_id, memo_of(event)) for (id_, handler_id), event in matches.found.items())
    if met:
        await session.all("meet_found_waits", *columns(met))


async def _look(session: PostgreSQLSession, matches: StoredMatches) -> None:
    for (bus, type_), first in matches.after.items():
        after: int | None = first
        while after is not None:
            found = [event_of(row) for row in await session.all("stored_events", bus, type_, after, LOOKED_AT)]
            matches.look_at(found)
            after = found[-1].id if len(found) == LOOKED_AT else None
