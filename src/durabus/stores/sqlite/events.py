"""``durabus.store.events.Events``: publishes, gets, finds, counts, removes and trims events.

``find`` asks each table that can hold an event and merges the rows by id. Conditions are fixed texts; values are bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from durabus.model.event import ADDRESSED, UNREAD_FOR, Event, NewEvent
from durabus.model.pattern import ANY, matches
from durabus.model.query import Counts, EventPage, EventQuery
from durabus.model.statuses import DEAD_LETTER, HISTORY, LIVE, EventStatus
from durabus.store.events import EventRef
from durabus.stores.sql.changes import in_parts
from durabus.stores.sql.rows import Row, event_of, to_json
from durabus.stores.sqlite.connection import Operation, Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.publishing import (
    add_events,
    counts,
    forget_dead_letters,
    get_event,
    leave_queue,
    note_forgotten,
    note_live,
)
from durabus.stores.sqlite.settlements import free_lock, load

_FEW = 1_000
_NO_BOUND = 2**63 - 1
LOOKED_AT = 5_000
"""Number of ids that one read looks at, about ten milliseconds: all other reads of this store wait for it."""
_NEWEST_FIRST = " ORDER BY id DESC LIMIT :limit"
_CONDITIONS = {
    "bus": " AND bus = :bus",
    "statuses": " AND status IN (SELECT value FROM json_each(:statuses))",
    "type": " AND type = :type",
    "pattern": " AND durabus_matches(:pattern, type)",
    "tags": " AND tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(tags), tags, '[]')) AS tag "
    "WHERE tag.value IN (SELECT value FROM json_each(:tags)))",
    "parent_ids": " AND parent_id IN (SELECT value FROM json_each(:parent_ids))",
    "created_from": " AND created_at >= :created_from",
    "created_until": " AND created_at <= :created_until",
}


class Stretch(NamedTuple):
    """Events of a range of ids, newest first. The search goes on below id ``go_on``; None means that it is complete."""

    events: list[Event]
    go_on: int | None


def find(tx: Transaction, query: EventQuery) -> Stretch:
    """Return up to ``limit`` events. If conditions may exclude most events, look at a few thousand ids only."""
    values = _values(query)
    where = "".join(text for name, text in _CONDITIONS.items() if name in values) + " AND id > :above_id"
    if "parent_ids" in values:
        # The plus makes the planner search by parent, which has fewer events than a bus.
        where = where.replace(" bus =", " +bus =")
    wanted = frozenset(query.statuses or EventStatus)
    few = _few_live(tx, query) if wanted & LIVE else None
    above = _bound(tx, query, wanted, values, few)
    found: list[Event] = []
    if wanted & LIVE:
        narrow = "" if few is None else " AND id IN (SELECT value FROM json_each(:ids))"
        found += _ask(tx, SQL["find_live"] + narrow + where, values | {"ids": to_json(few)})
    if wanted & DEAD_LETTER:
        found += _ask(tx, SQL["find_dead"] + where, values)
    if wanted & HISTORY:
        # Without a bus or parent, the plus keeps the planner from sorting every completed event.
        one = " AND completed = 1" if "bus" in values or "parent_ids" in values else " AND +completed = 1"
        if len(found) >= query.limit:  # an event older than a full page of others is not on this page
            values["above_id"] = sorted(event.id for event in found)[-query.limit]
        found += _ask(tx, SQL["find_completed"] + one + where, values)
    found.sort(key=lambda event: event.id, reverse=True)
    if len(found) >= query.limit:
        return Stretch(found[: query.limit], found[query.limit - 1].id)
    return Stretch(found, above + 1 if above else None)


def _values(query: EventQuery) -> dict[str, Any]:
    globbed = query.type is not None and ANY in query.type
    values = {
        "bus": query.bus,
        "statuses": to_json([status.value for status in query.statuses]) if query.statuses else None,
        "type": None if globbed else query.type,
        "pattern": query.type if globbed and query.type != ANY else None,
        "tags": to_json(query.tags) if query.tags else None,
        "parent_ids": to_json(query.parent_ids) if query.parent_ids else None,
        "created_from": query.created_from_ts,
        "created_until": query.created_until_ts,
    }
    return {name: value for name, value in values.items() if value is not None}


def _few_live(tx: Transaction, query: EventQuery) -> list[int] | None:
    """Return the ids of the live events of a small bus, to search by them. A walk by id finds a large bus soon."""
    if query.bus is None or query.parent_ids:
        return None
    ids = [row[0] for row in tx.all(SQL["few_live_ids"], {"bus": query.bus, "limit": _FEW})]
    return ids if len(ids) < _FEW else None


def _bound(
    tx: Transaction, query: EventQuery, wanted: frozenset[EventStatus], values: dict[str, Any], few: list[int] | None
) -> int:
    """Add the id bounds to ``values`` and return the lower one. A search by bus or parent alone needs no lower one."""
    before = _NO_BOUND if query.before_id is None else query.before_id
    far = "parent_ids" not in values and not values.keys() <= {"bus"}
    values |= {"before_id": before, "above_id": 0, "limit": query.limit}
    if far:
        newest = _newest(tx, wanted, values, few)
        values |= {"before_id": newest + 1, "above_id": max(newest - LOOKED_AT, 0)}
    above: int = values["above_id"]
    return above


def _newest(tx: Transaction, wanted: frozenset[EventStatus], values: dict[str, Any], few: list[int] | None) -> int:
    """Return an upper bound of the ids that can match, so that no read looks at deleted ids only."""
    found: list[int | None] = [0]
    if wanted & LIVE and few is not None:
        found += [id_ for id_ in few if id_ < values["before_id"]]
    elif wanted & LIVE:
        found.append(tx.value(SQL["newest_live"], values))
    if wanted & DEAD_LETTER:
        found.append(tx.value(SQL["newest_dead"], values))
    if wanted & HISTORY:
        found.append(tx.value(SQL["newest_completed_of_bus"] if "bus" in values else SQL["newest_completed"], values))
    return max(id_ for id_ in found if id_ is not None)


def _ask(tx: Transaction, sql: str, values: dict[str, Any]) -> list[Event]:
    if "pattern" in values:
        tx.connection.create_function("durabus_matches", 2, matches, deterministic=True)
    return [event_of(row) for row in tx.all(sql + _NEWEST_FIRST, values)]


def remove_event(tx: Transaction, ref: EventRef) -> bool:
    """Delete an event in any status. Its log entries stay."""
    event = get_event(tx, ref)
    if event is None:
        return False
    stored = load(tx, event.id)
    if stored is not None:
        free_lock(tx, stored)
        tx.many(SQL["forget_event_tags"], [(event.bus, tag, event.priority, event.id) for tag in event.tags])
        leave_queue(tx, [event.id])
        note_live(tx, {event.bus: -1})
    forget_dead_letters(tx, [event.id])
    if tx.run(SQL["forget_completed"], (event.id,)):
        note_forgotten(tx, [(event.bus, event.status)])
    forget_names(tx, [(event.id, event.event_id, event.bus, event.idempotency_key)])
    return True


def archived_until(tx: Transaction, *, ignoring: str = "") -> int:
    """Return the position up to which every archive but ``ignoring`` has a copy of the log."""
    return int(tx.value(SQL["archived_until"], (ignoring,)))


def forget_completed(tx: Transaction, ids: Sequence[int], *, ignoring: str = "") -> tuple[int, int]:
    """Trim COMPLETED and CANCELLED events with their log entries. Returns how many events and entries it deleted."""
    gone = tx.all(SQL["still_completed"], {"ids": to_json(ids), "archived": archived_until(tx, ignoring=ignoring)})
    entries = tx.run(SQL["forget_entries"], {"ids": to_json([row[0] for row in gone])})
    entries += tx.run(SQL["forget_published_entries"], {"event_ids": to_json([row[1] for row in gone])})
    note_forgotten(tx, [(row[2], row[4]) for row in gone])
    forget_names(tx, [row[:4] for row in gone])
    return len(gone), entries


def forget_names(tx: Transaction, gone: Sequence[Row]) -> None:
    """Free the event_ids and keys of deleted events (id, event_id, bus, idempotency_key), and delete their results."""
    if gone:
        tx.run(SQL["note_forgotten_id"], {"id": max(row[0] for row in gone)})
    tx.run(SQL["forget_event_ids"], {"event_ids": to_json([row[1] for row in gone])})
    tx.many(SQL["forget_keys"], [(bus, key, id_) for id_, _, bus, key in gone if key is not None])
    tx.run(SQL["forget_results"], {"ids": to_json([row[0] for row in gone])})


class SQLiteEvents(SQLiteCore):
    """Implements ``store.events.Events`` on SQLite."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        self._check_open()
        if not new:
            return []
        if connection is not None:
            return await self._join(connection, lambda tx: add_events(tx, new))
        operation = Operation(None, new)
        self._file.writer.submit(operation)
        events: list[Event] = await operation.future
        return events

    async def get_event(self, ref: EventRef) -> Event | None:
        return await self._read(lambda tx: get_event(tx, ref))

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        return await self._read(lambda tx: [get_event(tx, ref) for ref in refs])

    async def has_event(self, ref: EventRef) -> bool:
        return await self.get_event(ref) is not None

    async def remove_event(self, ref: EventRef) -> bool:
        return await self._write(lambda tx: remove_event(tx, ref))

    async def find(self, query: EventQuery) -> EventPage:
        """Read one range of ids after the other. One event more than the page tells whether another page follows."""
        self._check_open()
        if query.limit < 1:
            return EventPage(events=[])
        found, before = list[Event](), query.before_id
        while len(found) <= query.limit:
            asked = replace(query, before_id=before, limit=query.limit + 1 - len(found))
            events, before = await self._read(partial(find, query=asked))
            found += events
            if before is None:
                break
        last = found[query.limit - 1].id if len(found) > query.limit else None
        return EventPage(events=found[: query.limit], next_before_id=last)

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        self._check_open()
        return await self._trim(SQL["old_completed"], {"bus": bus, "until": self._now() - older_than}, limit)

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        self._check_open()
        recent = {"node": node, "addressed": ADDRESSED, "recent": self._now() - UNREAD_FOR}
        return await self._trim(SQL["excess_completed"], {"bus": bus, "keep": max(keep, 0), **recent}, limit)

    async def counts(self, bus: str | None = None) -> Counts:
        return await self._read(lambda tx: counts(tx, bus))

    async def _trim(self, sql: str, condition: dict[str, Any], limit: int) -> int:
        """Search without the write lock: an event of the history stays as it is until it is deleted."""
        rows = await self._read(
            lambda tx: tx.all(sql, condition | {"archived": archived_until(tx), "limit": max(limit, 0)})
        )
        trimmed = 0
        for part in in_parts([row[0] for row in rows]):
            trimmed += (await self._write(partial(forget_completed, ids=part)))[0]
        return trimmed
