"""``durabus.store.events.Events``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from durabus.backends.postgresql.caller import in_transaction_of
from durabus.backends.postgresql.core import PostgreSQLCore
from durabus.backends.postgresql.finding import find
from durabus.backends.postgresql.forgetting import TRIM_AT_ONCE, TRIM_TOGETHER, in_parts, remove_event
from durabus.backends.postgresql.publishing import add_events, known_events
from durabus.backends.postgresql.rows import columns
from durabus.model.event import Event, NewEvent
from durabus.model.query import Counts, EventPage, EventQuery
from durabus.store.events import EventRef


class PostgreSQLEvents(PostgreSQLCore):
    """Events as records."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        self._check_open()
        if not new:
            return []
        if connection is not None:
            async with in_transaction_of(connection, self._home) as session:
                return await add_events(session, new)
        if asyncio.get_running_loop() is self._loop:
            return await self._gathering.add(new)
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

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000) -> int:
        """Most have little to forget, and share a statement with other buses; who has much goes on alone."""
        most = max(min(limit, TRIM_TOGETHER), 0)
        trimmed = gone = await self._together("cleanup_excess_events", (bus, max(keep, 0), most), self._trim_excess)
        while gone >= most and trimmed < limit:
            most = min(limit - trimmed, TRIM_AT_ONCE)
            (gone,) = await self._trim_excess([(bus, max(keep, 0), most)])
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
        )

    async def _trim_excess(self, calls: Sequence[tuple[str, int, int]]) -> list[int]:
        rows = await self._plain_session().all("trim_excess", *columns(calls))
        gone: dict[str, int] = {row[0]: row[1] for row in rows}
        return [gone.pop(bus, 0) for bus, _, _ in calls]  # of two who trim one bus, the first did it

    async def _trim(self, ids: Sequence[int]) -> int:
        """They were looked for without locks; what is COMPLETED stays so until it is forgotten."""
        trimmed = 0
        for part in in_parts(ids):
            trimmed += (await self._ask("trim_completed", part))[0][0]
        return trimmed
