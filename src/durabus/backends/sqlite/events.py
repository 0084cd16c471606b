"""``durabus.store.events.Events``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from durabus.backends.sqlite.core import SQLiteCore
from durabus.backends.sqlite.counting import counts
from durabus.backends.sqlite.finding import find
from durabus.backends.sqlite.forgetting import forget_completed, in_parts, remove_event
from durabus.backends.sqlite.operation import Operation
from durabus.backends.sqlite.publishing import add_events, get_event
from durabus.backends.sqlite.sql import statement
from durabus.model.event import Event, NewEvent
from durabus.model.query import Counts, EventPage, EventQuery
from durabus.store.events import EventRef

_OLD = statement("old_completed")
_EXCESS = statement("excess_completed")


class SQLiteEvents(SQLiteCore):
    """Events as records."""

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
        """A stretch of ids at a time; one more than the page tells whether another follows."""
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
        return await self._trim(_OLD, {"bus": bus, "until": self._now() - older_than}, limit)

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000) -> int:
        return await self._trim(_EXCESS, {"bus": bus, "keep": max(keep, 0)}, limit)

    async def counts(self, bus: str | None = None) -> Counts:
        return await self._read(lambda tx: counts(tx, bus))

    async def _trim(self, sql: str, condition: dict[str, Any], limit: int) -> int:
        """Look for them without the write lock; what is COMPLETED stays so until it is forgotten."""
        rows = await self._read(lambda tx: tx.all(sql, condition | {"limit": max(limit, 0)}))
        trimmed = 0
        for part in in_parts([row[0] for row in rows]):
            trimmed += (await self._write(partial(forget_completed, ids=part)))[0]
        return trimmed
