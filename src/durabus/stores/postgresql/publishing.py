"""Adds events, and gets events and ids by reference.

``add_events`` calls one function for the whole batch, then reads the events that were known already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from durabus.errors import SchemaError
from durabus.model.event import Event, NewEvent
from durabus.store.events import EventRef
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.layout import columns
from durabus.stores.sql.rows import added_event, event_of, strings_to

TRIES = 5
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Batch(msgspec.Struct, frozen=True):
    """New events as the arrays that the function takes. An option that no event uses is None."""

    new: Sequence[NewEvent]
    arguments: tuple[Any, ...]


def batch_of(new: Sequence[NewEvent]) -> Batch:
    """Convert events to columns, with one pass for each column."""
    return Batch(
        new,
        (
            [one.event_id for one in new],
            [one.bus for one in new],
            [one.type for one in new],
            [one.payload_json for one in new],
            _used([one.metadata_json for one in new]),
            _used([strings_to(one.tags) if one.tags else None for one in new]),
            _used([one.priority or None for one in new]),
            _used([one.delay or None for one in new]),
            _used([one.max_attempts for one in new]),
            _used([one.parent_id for one in new]),
            _used([one.idempotency_key for one in new]),
        ),
    )


async def get_events(session: PostgreSQLSession, ids: Iterable[int], event_ids: Sequence[str] = ()) -> dict[int, Event]:
    """Return events in any status, read at one instant."""
    wanted = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**63]
    if not wanted and not event_ids:
        return {}
    return {row[0]: event_of(row) for row in await session.all("get_events", wanted, list(event_ids))}


async def add_events(session: PostgreSQLSession, new: Sequence[NewEvent]) -> list[Event]:
    """Store a batch of events. For an event that is stored already, return the stored one."""
    if len(new) == 1 and new[0].idempotency_key is None and session.channel is None:
        stored = await _add_one(session, new[0])
        if stored is not None:
            return [stored]
    batch = batch_of(new)
    for _ in range(TRIES):
        row = await session.one("add_events", session.clock, session.channel, *batch.arguments)
        if row is None:
            break
        now, ids, known, dues = row
        stood_in = await get_events(session, [id_ for id_ in known if id_ is not None]) if known else {}
        # another call may remove a known event before it is read: then the next try stores it
        if not known or all(id_ is None or id_ in stood_in or id_ in ids for id_ in known):
            session.woken.update({one.bus for one in batch.new})
            return _answer(batch.new, now, ids, dues=dues, known=known, stood_in=stood_in)
    raise SchemaError(
        "an event is remembered in published or idempotency_keys but stored nowhere: its row was deleted by hand; "
        "delete it there too (remove_event does both)"
    )


async def _add_one(session: PostgreSQLSession, new: NewEvent) -> Event | None:
    """Store one event without a key in a plain statement, which costs less. Returns None if it is known."""
    row = await session.one(
        "add_event",
        session.clock,
        new.event_id,
        new.bus,
        new.type,
        new.payload_json,
        new.metadata_json,
        strings_to(new.tags),
        new.priority,
        new.delay,
        new.parent_id,
        new.max_attempts,
    )
    if row is None:
        return None
    session.woken.add(new.bus)
    return _answer([new], row[0], [row[1]], dues=[row[2]], known=None, stood_in={})[0]


async def note_counts(session: PostgreSQLSession, changed: dict[str, list[int]]) -> None:
    """Write how the numbers of events of each bus changed, in the order of ``EventStatus``."""
    rows = [(bus, *counts) for bus, counts in changed.items() if any(counts)]
    if rows:
        await session.all("note_counts", *columns(rows))


async def known_events(session: PostgreSQLSession, refs: Sequence[EventRef]) -> list[Event | None]:
    """Return each event in any status, or None. A reference that is no UUID names no event."""
    ids = [ref for ref in refs if isinstance(ref, int)]
    found = await get_events(session, ids, [ref for ref in refs if isinstance(ref, str) and _UUID.fullmatch(ref)])
    named = {event.event_id: event for event in found.values()}
    return [found.get(ref) if isinstance(ref, int) else named.get(ref) for ref in refs]


async def id_of(session: PostgreSQLSession, ref: EventRef) -> int | None:
    """Return the id of a reference. An id is returned unchanged."""
    if isinstance(ref, int):
        return ref
    return (await ids_of(session, [ref])).get(ref)


async def ids_of(session: PostgreSQLSession, refs: Sequence[str]) -> dict[str, int]:
    """Return the ids of event_ids. An event_id that is no UUID names no event."""
    wanted = [ref for ref in refs if _UUID.fullmatch(ref)]
    return {row[1]: row[0] for row in await session.all("get_event_ids", wanted)} if wanted else {}


def _used(column: list[Any]) -> list[Any] | None:
    return column if any(value is not None for value in column) else None


def _answer(
    new: Sequence[NewEvent],
    now: float,
    ids: Sequence[int | None],
    *,
    dues: Sequence[float | None] | None,
    known: Sequence[int | None] | None,
    stood_in: dict[int, Event],
) -> list[Event]:
    events: list[Event] = []
    for number, (one, id_) in enumerate(zip(new, ids, strict=True)):
        if id_ is None:
            other = known[number] if known else None
            # the first of two equal events in this batch stands for the second
            events.append(stood_in[other] if other in stood_in else events[list(ids).index(other)])
            continue
        due = None if dues is None else dues[number]
        events.append(added_event(one, id_, now, now if due is None else due))
    return events
