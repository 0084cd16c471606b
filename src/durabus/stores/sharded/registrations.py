"""``durabus.store.registrations.Registrations``: written to every shard, and read as the union of all."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.stores.sharded.core import ShardedCore


class ShardedRegistrations(ShardedCore):
    """Buses and handlers. Each shard has the whole list: its claims carry the revision of its own list."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        await self._all(lambda shard, _: shard.register_handlers(bus, node, handlers, kept_for=kept_for))

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        return any(await self._all(lambda shard, _: shard.unregister_handler(bus, handler_id)))

    async def list_handlers(self, bus: str) -> Registered:
        """See ``Registrations``. ``revision`` joins those of all shards; a claim carries that of its own shard."""
        found = await self._all(lambda shard, _: shard.list_handlers(bus))
        handlers: dict[tuple[str, str], HandlerInfo] = {}
        for info in (info for one in found for info in one.handlers):
            known = handlers.get((info.handler_id, info.node))
            handlers[info.handler_id, info.node] = info if known is None else _merged_handler(known, info)
        revisions = [one.revision for one in found]
        return Registered("|".join(revisions) if any(revisions) else "", [handlers[key] for key in sorted(handlers)])

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        found = await self._all(lambda shard, _: shard.list_buses(after=after, limit=limit))
        buses: dict[str, BusInfo] = {}
        for info in (info for one in found for info in one):
            known = buses.get(info.bus)
            buses[info.bus] = info if known is None else _merged_bus(known, info)
        return [buses[name] for name in sorted(buses)][: max(limit, 0)]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        found = await self._all(lambda shard, _: shard.active_buses(after=after, limit=limit))
        return sorted({name for names in found for name in names})[: max(limit, 0)]

    async def stop_bus(self, bus: str) -> None:
        await self._all(lambda shard, _: shard.stop_bus(bus))

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        """See ``Registrations``. A shard with live events keeps the bus. Counts the buses archived on every shard."""
        return min(await self._all(lambda shard, _: shard.archive_buses(stopped_for=stopped_for, limit=limit)))


def _merged_handler(one: HandlerInfo, other: HandlerInfo) -> HandlerInfo:
    newer = other if other.last_seen_ts > one.last_seen_ts else one
    return HandlerInfo(
        handler_id=newer.handler_id,
        pattern=newer.pattern,
        node=newer.node,
        created_ts=min(one.created_ts, other.created_ts),
        last_seen_ts=newer.last_seen_ts,
    )


def _merged_bus(one: BusInfo, other: BusInfo) -> BusInfo:
    stopped = None if one.stopped_ts is None or other.stopped_ts is None else max(one.stopped_ts, other.stopped_ts)
    return BusInfo(
        bus=one.bus,
        created_ts=min(one.created_ts, other.created_ts),
        last_seen_ts=max(one.last_seen_ts, other.last_seen_ts),
        stopped_ts=stopped,
    )
