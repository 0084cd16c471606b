"""``durabus.store.registrations.Registrations``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.records import given

_bus = msgspec.msgpack.Decoder(tuple[float, float, float | bool, int]).decode
_handlers = msgspec.msgpack.Decoder(list[tuple[str, str, str, float, float, float | bool]]).decode


class RedisRegistrations(RedisCore):
    """Buses and handlers."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        named = [(handler.handler_id, handler.pattern) for handler in handlers]
        await self._call("register_handlers", bus, node, named, kept_for)

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        return bool(await self._call("unregister_handler", bus, handler_id))

    async def list_handlers(self, bus: str) -> Registered:
        revision, packed = await self._call("list_handlers", bus)
        handlers = [
            HandlerInfo(handler_id=handler_id, node=node, pattern=pattern, created_ts=created, last_seen_ts=seen)
            for handler_id, node, pattern, created, seen, _ in sorted(_handlers(packed))
        ]
        return Registered(revision.decode(), handlers)

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        answer = await self._call("list_buses", after, max(limit, 0))
        return [_bus_info(name, record) for name, record in zip(answer[::2], answer[1::2], strict=True)]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        return [name.decode() for name in await self._call("active_buses", after, limit)]

    async def stop_bus(self, bus: str) -> None:
        await self._call("stop_bus", bus)

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        self._check_open()
        gone, passed, more = 0, 0, 1
        while more and gone < limit:
            count, passed, more = await self._call("archive_buses", stopped_for, limit - gone, passed)
            gone += count
        return gone


def _bus_info(name: bytes, record: bytes) -> BusInfo:
    created, seen, stopped, _ = _bus(record)
    return BusInfo(bus=name.decode(), created_ts=created, last_seen_ts=seen, stopped_ts=given(stopped))
