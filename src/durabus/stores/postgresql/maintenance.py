"""Deletes events with their ids, keys and results. A trim also deletes their log entries."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.model.statuses import EventStatus
from durabus.store.events import EventRef
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.publishing import id_of
from durabus.stores.postgresql.states import get_events, load, note_counts
from durabus.stores.sql.rows import Row

TRIM_TOGETHER = 100
"""Maximum number of events of one bus that are trimmed together with those of other buses."""

_PLACES = {status: number for number, status in enumerate(EventStatus)}


async def remove_event(session: PostgreSQLSession, ref: EventRef) -> bool:
    """Delete an event in any status. Its log entries stay."""
    id_ = await id_of(session, ref)
    if id_ is None or not 0 < id_ < 2**63:
        return False
    stored = (await load(session, [id_])).get(id_)
    if stored is not None:
        event = stored.state.event
        await session.all("forget_live_events", [id_])
        if stored.lock_key is not None:
            await session.all("free_event_locks", [stored.lock_key], [stored.state.token])
            session.woken.add(event.bus)
    else:
        await session.all("lock_dead_letters", [id_])
        ended = (await get_events(session, [id_])).get(id_)
        if ended is None:
            return False
        event = ended
        gone = await session.all("forget_dead_letters", [id_]) or await session.all("forget_completed", id_)
        if not gone:
            return False  # another call deleted it first
    await forget_names(session, [(event.id, event.event_id, event.bus, event.idempotency_key)])
    await _uncount(session, [event.bus], event.status)
    return True


async def forget_dead(session: PostgreSQLSession, gone: Sequence[Row]) -> None:
    """Free the names of deleted dead letters (id, event_id, bus, idempotency_key, status), and count them."""
    await forget_names(session, [row[:4] for row in gone])
    for status in (EventStatus.FAILED, EventStatus.COMPLETED_WITH_ERRORS):
        await _uncount(session, [row[2] for row in gone if row[4] == status.value], status)


async def forget_names(session: PostgreSQLSession, gone: Sequence[Row]) -> None:
    """Free the event_ids and keys of deleted events (id, event_id, bus, idempotency_key), and delete their results."""
    if not gone:
        return
    await session.all("forget_event_ids", [row[1] for row in gone])
    keyed = [row for row in gone if row[3] is not None]
    if keyed:
        await session.all(
            "forget_keys", [row[2] for row in keyed], [row[3] for row in keyed], [row[0] for row in keyed]
        )
    await session.all("forget_results", [row[0] for row in gone])


async def _uncount(session: PostgreSQLSession, buses: Sequence[str], status: EventStatus) -> None:
    changed: dict[str, list[int]] = {}
    for bus in buses:
        changed.setdefault(bus, [0] * len(_PLACES))[_PLACES[status]] -= 1
    await note_counts(session, changed)
