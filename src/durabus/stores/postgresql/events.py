"""``durabus.store.events.Events``: publishes, gets, finds, counts, removes and trims events.

``find`` asks each table that can hold an event and merges the rows by id. Conditions are fixed texts; values are bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from durabus.model.event import ADDRESSED, UNREAD_FOR, Event, NewEvent
from durabus.model.pattern import ANY, matches
from durabus.model.query import Counts, EventPage, EventQuery
from durabus.model.statuses import DEAD_LETTER, HISTORY, LIVE, EventStatus
from durabus.store.events import EventRef
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore, in_transaction_of
from durabus.stores.postgresql.layout import columns
from durabus.stores.postgresql.publishing import add_events, get_events, id_of, known_events, note_counts
from durabus.stores.postgresql.settlements import COUNTED, load
from durabus.stores.sql.changes import AT_ONCE, in_parts
from durabus.stores.sql.rows import Row, event_of

TRIM_TOGETHER = 100
"""Maximum number of events of one bus that are trimmed together with those of other buses."""
_NO_BOUND = 2**63 - 1
_LOOK_AT = 10
"""For a glob, LIKE only narrows the search: each read takes this many times the limit, and Python matches the types."""

_CONDITIONS = {
    "bus": "bus = {}",
    "statuses": "status = ANY ({}::text[])",
    "type": "type = {}",
    "like": "type LIKE {}",
    # ARRAY(SELECT …) is computed once; a cast of the list would be computed for each row.
    "parent_ids": "parent_id = ANY (ARRAY(SELECT unnest({}::text[])::uuid))",
    "created_from": "created_at >= to_timestamp({})",
    "created_until": "created_at <= to_timestamp({})",
}
_TAGS = "tags && {}::text[]"
_JSON_TAGS = "tags IS NOT NULL AND ARRAY(SELECT json_array_elements_text(tags::json)) && {}::text[]"


async def find(session: PostgreSQLSession, query: EventQuery) -> EventPage:
    """Return one page of events, newest id first."""
    if query.limit < 1:
        return EventPage(events=[])
    wanted = frozenset(query.statuses or EventStatus)
    found: list[Event] = []
    if wanted & LIVE:
        found += await _ask(session, query, "find_live", _TAGS)
    if wanted & DEAD_LETTER:
        found += await _ask(session, query, "find_dead", _TAGS)
    if wanted & HISTORY:
        found += await _ask(session, query, "find_completed", _JSON_TAGS)
    found.sort(key=lambda event: event.id, reverse=True)
    if len(found) <= query.limit:
        return EventPage(events=found)
    page = found[: query.limit]
    return EventPage(events=page, next_before_id=page[-1].id)


async def _ask(session: PostgreSQLSession, query: EventQuery, name: str, tags: str) -> list[Event]:
    """Return the newest ``limit + 1`` events of one table."""
    globbed = query.type is not None and ANY in query.type and query.type != ANY
    before = _NO_BOUND if query.before_id is None else min(query.before_id, _NO_BOUND)
    wanted = query.limit + 1
    read = wanted * (_LOOK_AT if globbed else 1)
    found: list[Event] = []
    while True:
        where, values = _conditions(query, tags, before, read)
        rows = await session.text(f"{session.sql[name]}{where} ORDER BY id DESC LIMIT $2", *values)
        events = [event_of(row) for row in rows]
        found += [event for event in events if not globbed or matches(query.type or ANY, event.type)]
        if len(rows) < read or len(found) >= wanted:
            return found[:wanted]
        before = events[-1].id


def _conditions(query: EventQuery, tags: str, before: int, limit: int) -> tuple[str, list[Any]]:
    globbed = query.type is not None and ANY in query.type
    conditions = {
        "bus": query.bus,
        "statuses": [status.value for status in query.statuses] or None,
        "type": None if globbed else query.type,
        "like": _like(query.type) if query.type is not None and globbed and query.type != ANY else None,
        "parent_ids": list(query.parent_ids) or None,
        "created_from": query.created_from_ts,
        "created_until": query.created_until_ts,
    }
    values: list[Any] = [before, limit]
    texts = []
    for condition, value in conditions.items():
        if value is not None:
            values.append(value)
            texts.append(_CONDITIONS[condition].format(f"${len(values)}"))
    if query.tags:
        values.append(list(query.tags))
        texts.append(tags.format(f"${len(values)}"))
    return "".join(f" AND {text}" for text in texts), values


def _like(pattern: str) -> str:
    """Return a LIKE pattern for all types that the glob matches. It matches more: a star of a glob matches no dot."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace(ANY, "%")


async def remove_event(session: PostgreSQLSession, ref: EventRef) -> bool:
    """Delete an event in any status. Its log entries stay."""
    id_ = await id_of(session, ref)
    if id_ is None or not 0 < id_ < 2**63:
        return False
    stored = (await load(session, [id_])).get(id_)
    if stored is not None:
        event = stored.state.event
        await session.all("forget_live_events", [id_])
        if event.parent_id is not None:
            rows = await session.all("wake_parents", session.channel, [event.parent_id])
            session.woken |= {bus for (bus,) in rows}
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
        changed.setdefault(bus, [0] * len(COUNTED))[COUNTED[status]] -= 1
    await note_counts(session, changed)


class PostgreSQLEvents(PostgreSQLCore):
    """Implements ``store.events.Events`` on PostgreSQL."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        self._check_open()
        if not new:
            return []
        if connection is not None:
            async with in_transaction_of(connection, self._home) as session:
                return await add_events(session, new)
        if asyncio.get_running_loop() is self._loop:
            return await self._publish_coalescer.add(new)
        return await self._publish(new)

    async def get_event(self, ref: EventRef) -> Event | None:
        return (await self.get_events([ref]))[0]

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        self._check_open()
        return await known_events(self._plain_session(), refs)

    async def has_event(self, ref: EventRef) -> bool:
        return await self.get_event(ref) is not None

    async def remove_event(self, ref: EventRef) -> bool:
        return await self._write(lambda session: remove_event(session, ref))

    async def find(self, query: EventQuery) -> EventPage:
        return await self._look(lambda session: find(session, query))

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        rows = await self._ask("old_completed", bus, self._clock_argument(), older_than, max(limit, 0))
        return await self._trim([row[0] for row in rows])

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        """Trim a few events of several buses in one statement. A bus with more of them goes on alone."""
        most = max(min(limit, TRIM_TOGETHER), 0)
        asked = (bus, max(keep, 0), most, node)
        trimmed = gone = await self._together("cleanup_excess_events", asked, self._trim_excess)
        while gone >= most and trimmed < limit:
            most = min(limit - trimmed, AT_ONCE)
            (gone,) = await self._trim_excess([(bus, max(keep, 0), most, node)])
            trimmed += gone
        return trimmed

    async def counts(self, bus: str | None = None) -> Counts:
        row = (await self._ask("counts", bus))[0]
        return Counts(
            pending=int(row[0]),
            processing=int(row[1]),
            completed=int(row[2]),
            completed_with_errors=int(row[3]),
            failed=int(row[4]),
            cancelled=int(row[5]),
        )

    async def _trim_excess(self, calls: Sequence[tuple[str, int, int, str | None]]) -> list[int]:
        session = self._plain_session()
        rows = await session.all("trim_excess", *columns(calls), session.clock, UNREAD_FOR, ADDRESSED)
        gone: dict[str, int] = {row[0]: row[1] for row in rows}
        return [gone.pop(bus, 0) for bus, _, _, _ in calls]  # of two calls for one bus, the first gets the number

    async def _trim(self, ids: Sequence[int]) -> int:
        """Trim events that were found without locks: an event of the history stays as it is until it is deleted."""
        trimmed = 0
        for part in in_parts(ids):
            trimmed += (await self._ask("trim_completed", part, ""))[0][0]
        return trimmed
