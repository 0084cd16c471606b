"""The sharded store: its URL, its registrations, and with the parts of the other modules the whole."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from durabus.clock import Clock
from durabus.errors import ConfigurationError
from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.store.connect import make_store
from durabus.stores.sharded.claims import ShardedClaims, ShardedProcesses, ShardedResults
from durabus.stores.sharded.core import ShardedCore
from durabus.stores.sharded.events import ShardedEvents
from durabus.stores.sharded.log import ShardedLog

SCHEME = "sharded://"
MAX_SHARDS = 16
ONE_LOG = frozenset({"kafka", "nats"})


def parse_url(url: str) -> list[str]:
    """Return the URLs of the shards of ``sharded://sqlite:///0.db|sqlite:///1.db``, in order.

    No error shows a URL, because it may hold a password.
    """
    parts = url.removeprefix(SCHEME).split("|")
    if not all("://" in part for part in parts):
        raise ConfigurationError(
            "sharded: write the stores' URLs with a bar between them, as sharded://sqlite:///0.db|sqlite:///1.db"
        )
    if len(parts) > MAX_SHARDS:
        raise ConfigurationError(f"sharded: {len(parts)} shards, at most {MAX_SHARDS} are possible")
    for number, part in enumerate(parts):
        scheme = urlsplit(part).scheme
        if scheme == "sharded":
            raise ConfigurationError(f"sharded: shard {number} is sharded itself: name all stores in one URL")
        if scheme in ONE_LOG:
            # These stores trim by the positions that readers save; those of a sharded store are vectors.
            raise ConfigurationError(
                f"sharded: shard {number} is {scheme}://, which cannot be one: give each bus a prefix there instead"
            )
    if "memory" not in {urlsplit(part).scheme for part in parts} and len(set(parts)) < len(parts):
        raise ConfigurationError("sharded: one store is named twice, but every shard needs a store of its own")
    return parts


class ShardedRegistrations(ShardedCore):
    """Implements ``store.registrations.Registrations`` on several shards.

    Each shard has the whole list of handlers: its claims carry the revision of its own list.
    """

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


class ShardedStore(ShardedEvents, ShardedClaims, ShardedResults, ShardedProcesses, ShardedLog, ShardedRegistrations):
    """Several stores as one. An event and everything about it is on shard ``event_id % N``.

    Of the contract

    - these hold as on one store: claims, leases, fences and locks; everything about one event; one event for each
      ``event_id``; filters, pages, totals and counts; an exact repeat of a call takes effect once.
    - these hold only among the events of one shard (``one_order=False``): ids in the order of publishing, the order of
      claims, commit order of the log, batches that are stored, requeued or settled all or none, "oldest first" of a
      purge or trim with a limit. A batch that spans shards and fails half-way raises; a repeat does the rest.
    - these raise ``UnsupportedByStore``: the serial modes, ordering keys, idempotency keys, caller transactions.

    A position of the log is a vector of the positions of all shards. A reader gets every entry once, and those of one
    event in their order. Entries of different shards come by time as far as they can be read at that moment, so two
    readers may see them in different order. The clock of the event's shard decides leases; ``now`` is that of the first
    shard. ``counts`` and lists are sums over shards that are read at nearly the same moment. While a shard is down, its
    events wait, and calls that need it raise (lists, counts, the log, registrations). Workers still claim and settle
    the events of the other shards.
    """

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> ShardedStore:
        """Return the store of ``sharded://…|…``. The number and order of its shards can never change."""
        return cls([make_store(part, clock=clock) for part in parse_url(url)])
