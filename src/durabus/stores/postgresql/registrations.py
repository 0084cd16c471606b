"""``durabus.store.registrations.Registrations``: registers and lists buses and handlers. It also wakes nodes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.wakeups import ENDS

_json = msgspec.json.Encoder().encode


class Registering(msgspec.Struct, frozen=True):
    """The handlers of a node, with the field names that ``register_handlers`` reads."""

    bus: str
    node: str
    handler_ids: list[str]
    patterns: list[str]
    kept_for: float | None


class PostgreSQLRegistrations(PostgreSQLCore):
    """Implements ``store.registrations.Registrations`` on PostgreSQL."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        wanted = {one.handler_id: one.pattern for one in handlers}
        call = Registering(bus, node, list(wanted), list(wanted.values()), kept_for)
        await self._together("register_handlers", call, self._register)

    async def _register(self, calls: Sequence[Registering]) -> list[None]:
        ordered = sorted(calls, key=lambda call: call.bus)  # all calls lock rows in this order
        await self._plain_session().all("register_handlers", self._clock_argument(), _json(ordered).decode())
        return [None] * len(calls)

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        async def unregister(session: PostgreSQLSession) -> bool:
            await session.all("lock_bus", bus)
            gone = await session.all("unregister_handler", bus, handler_id, session.clock)
            if gone:
                await session.all("revise_handlers", bus)
            return any(lived for (lived,) in gone)

        return await self._write(unregister)

    async def list_handlers(self, bus: str) -> Registered:
        return await self._together("list_handlers", bus, self._list_handlers)

    async def _list_handlers(self, buses: Sequence[str]) -> list[Registered]:
        found: dict[str, Registered] = {}
        rows = await self._plain_session().all("list_handlers", buses, self._clock_argument())
        for bus, revision, handler_id, node, pattern, created, seen in rows:
            registered = found.setdefault(bus, Registered(revision, []))
            if handler_id is not None:
                info = HandlerInfo(
                    handler_id=handler_id, node=node, pattern=pattern, created_ts=created, last_seen_ts=seen
                )
                registered.handlers.append(info)
        return [found.get(bus) or Registered("", []) for bus in buses]

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        rows = await self._ask("list_buses", after, max(limit, 0))
        return [BusInfo(bus=row[0], created_ts=row[1], last_seen_ts=row[2], stopped_ts=row[3]) for row in rows]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        return [row[0] for row in await self._ask("active_buses", after, max(limit, 0))]

    async def stop_bus(self, bus: str) -> None:
        await self._together("stop_bus", bus, self._stop_buses)

    async def _stop_buses(self, buses: Sequence[str]) -> list[None]:
        await self._plain_session().all("stop_buses", sorted(set(buses)), self._clock_argument())
        return [None] * len(buses)

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        return len(await self._ask("archive_buses", self._clock_argument(), stopped_for, max(limit, 0)))

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._check_open()
        return await self._hints.wait_for_ends(node, timeout)

    async def tell_ends(self, nodes: Sequence[str]) -> None:
        self._check_open()
        self._hints.tell({ENDS + node for node in nodes})
