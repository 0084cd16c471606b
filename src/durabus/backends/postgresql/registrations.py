"""``durabus.store.registrations.Registrations``."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.backends.postgresql.core import PostgreSQLCore
from durabus.backends.postgresql.rows import Row
from durabus.backends.postgresql.session import Session
from durabus.model.handler import BusInfo, HandlerInfo, Registered


class PostgreSQLRegistrations(PostgreSQLCore):
    """Buses and handlers."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        wanted = {one.handler_id: one.pattern for one in handlers}

        async def register(session: Session) -> None:
            now = await session.now()
            until = None if kept_for is None else now + kept_for
            # the row of the bus is locked from here on: one node after the other
            known = not await session.value("register_bus", bus, now)
            rows = await session.all("list_handlers", bus)
            stale = [row for row in rows if not _lives(row, now) or (row[1] == node and row[0] not in wanted)]
            mine = {row[0]: row[2] for row in rows if row[1] == node and _lives(row, now)}
            if stale:
                await session.all("forget_handlers", bus, [row[0] for row in stale], [row[1] for row in stale])
            if wanted:
                await session.all("register_handlers", bus, node, list(wanted), list(wanted.values()), now, until)
            if known and (stale or mine != wanted):
                await session.all("revise_handlers", bus)

        await self._write(register)

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        async def unregister(session: Session) -> bool:
            now = await session.now()
            await session.all("lock_bus", bus)
            gone = [row for row in await session.all("list_handlers", bus) if row[0] == handler_id]
            if gone:
                await session.all("forget_handlers", bus, [row[0] for row in gone], [row[1] for row in gone])
                await session.all("revise_handlers", bus)
            return any(_lives(row, now) for row in gone)

        return await self._write(unregister)

    async def list_handlers(self, bus: str) -> Registered:
        async def look(session: Session) -> Registered:
            now = await session.now()
            revision = await session.value("get_revision", bus)
            return Registered(
                revision or "",
                [
                    HandlerInfo(handler_id=row[0], node=row[1], pattern=row[2], created_ts=row[3], last_seen_ts=row[4])
                    for row in await session.all("list_handlers", bus)
                    if _lives(row, now)
                ],
            )

        return await self._look(look)

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        rows = await self._ask("list_buses", after, max(limit, 0))
        return [BusInfo(bus=row[0], created_ts=row[1], last_seen_ts=row[2], stopped_ts=row[3]) for row in rows]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        return [row[0] for row in await self._ask("active_buses", after, max(limit, 0))]

    async def stop_bus(self, bus: str) -> None:
        await self._ask("stop_bus", bus, self._clock_argument())

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        return len(await self._ask("archive_buses", self._clock_argument(), stopped_for, max(limit, 0)))


def _lives(row: Row, now: float) -> bool:
    return row[5] is None or row[5] > now
