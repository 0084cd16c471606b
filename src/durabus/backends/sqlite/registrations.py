"""``durabus.store.registrations.Registrations``."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.backends.sqlite.core import SQLiteCore
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.model.handler import BusInfo, HandlerInfo

_REGISTER_BUS = statement("register_bus")
_REGISTER = statement("register_handlers")
_UNREGISTER = statement("unregister_handler")
_LIST_HANDLERS = statement("list_handlers")
_LIST_BUSES = statement("list_buses")
_ACTIVE = statement("active_buses")
_STOP = statement("stop_bus")
_ARCHIVABLE = statement("archivable_buses")
_FORGET_BUS = statement("forget_bus")
_FORGET_HANDLERS = statement("forget_handlers")


class SQLiteRegistrations(SQLiteCore):
    """Buses and handlers."""

    async def register_handlers(self, bus: str, handlers: Sequence[HandlerInfo]) -> None:
        def register(tx: Transaction) -> None:
            tx.run(_REGISTER_BUS, {"bus": bus, "now": tx.now})
            tx.many(_REGISTER, [(bus, one.handler_id, one.pattern, tx.now, tx.now) for one in handlers])

        await self._write(register)

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        return await self._write(lambda tx: tx.run(_UNREGISTER, (bus, handler_id)) > 0)

    async def list_handlers(self, bus: str) -> list[HandlerInfo]:
        rows = await self._read(lambda tx: tx.all(_LIST_HANDLERS, (bus,)))
        return [HandlerInfo(handler_id=row[0], pattern=row[1], created_ts=row[2], last_seen_ts=row[3]) for row in rows]

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        rows = await self._read(lambda tx: tx.all(_LIST_BUSES, {"after": after, "limit": limit}))
        return [BusInfo(bus=row[0], created_ts=row[1], last_seen_ts=row[2], stopped_ts=row[3]) for row in rows]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        rows = await self._read(lambda tx: tx.all(_ACTIVE, {"after": after, "limit": limit}))
        return [row[0] for row in rows]

    async def stop_bus(self, bus: str) -> None:
        await self._write(lambda tx: tx.run(_STOP, {"bus": bus, "now": tx.now}))

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        def archive(tx: Transaction) -> int:
            gone = tx.all(_ARCHIVABLE, {"until": tx.now - stopped_for, "limit": limit})
            tx.many(_FORGET_BUS, gone)
            tx.many(_FORGET_HANDLERS, gone)
            return len(gone)

        return await self._write(archive)
