"""``durabus.store.registrations.Registrations``: registers and lists buses and handlers."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.stores.sql.rows import Row
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.layout import SQL


class SQLiteRegistrations(SQLiteCore):
    """Implements ``store.registrations.Registrations`` on SQLite."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        def register(tx: Transaction) -> None:
            known = bool(tx.all(SQL["get_revision"], (bus,)))
            tx.run(SQL["register_bus"], {"bus": bus, "now": tx.now})
            until = None if kept_for is None else tx.now + kept_for
            wanted = {one.handler_id: one.pattern for one in handlers}
            rows = tx.all(SQL["list_handlers"], (bus,))
            stale = [row for row in rows if not _lives(row, tx.now) or (row[1] == node and row[0] not in wanted)]
            tx.many(SQL["forget_handler"], [(bus, row[0], row[1]) for row in stale])
            mine = {row[0]: row[2] for row in rows if row[1] == node and _lives(row, tx.now)}
            tx.many(
                SQL["register_handlers"],
                [(bus, name, node, pattern, tx.now, tx.now, until) for name, pattern in wanted.items()],
            )
            if stale or mine != wanted or not known:
                _revise(tx, bus)

        await self._write(register)

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        def unregister(tx: Transaction) -> bool:
            gone = [row for row in tx.all(SQL["list_handlers"], (bus,)) if row[0] == handler_id]
            tx.many(SQL["forget_handler"], [(bus, row[0], row[1]) for row in gone])
            if gone:
                _revise(tx, bus)
            return any(_lives(row, tx.now) for row in gone)

        return await self._write(unregister)

    async def list_handlers(self, bus: str) -> Registered:
        def look(tx: Transaction) -> Registered:
            revision = tx.all(SQL["get_revision"], (bus,))
            return Registered(
                str(revision[0][0]) if revision else "",
                [
                    HandlerInfo(handler_id=row[0], node=row[1], pattern=row[2], created_ts=row[3], last_seen_ts=row[4])
                    for row in tx.all(SQL["list_handlers"], (bus,))
                    if _lives(row, tx.now)
                ],
            )

        return await self._read(look)

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        rows = await self._read(lambda tx: tx.all(SQL["list_buses"], {"after": after, "limit": limit}))
        return [BusInfo(bus=row[0], created_ts=row[1], last_seen_ts=row[2], stopped_ts=row[3]) for row in rows]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        rows = await self._read(lambda tx: tx.all(SQL["active_buses"], {"after": after, "limit": limit}))
        return [row[0] for row in rows]

    async def stop_bus(self, bus: str) -> None:
        await self._write(lambda tx: tx.run(SQL["stop_bus"], {"bus": bus, "now": tx.now}))

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        def archive(tx: Transaction) -> int:
            gone = tx.all(SQL["archivable_buses"], {"until": tx.now - stopped_for, "limit": limit})
            tx.many(SQL["forget_bus"], gone)
            tx.many(SQL["forget_handlers"], gone)
            return len(gone)

        return await self._write(archive)


def _lives(row: Row, now: float) -> bool:
    return row[5] is None or row[5] > now


def _revise(tx: Transaction, bus: str) -> None:
    tx.run(SQL["count_revision"])
    tx.run(SQL["revise_handlers"], (bus,))
