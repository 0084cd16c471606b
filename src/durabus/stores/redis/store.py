"""The Redis store: registrations, locks and dead letters, and with the parts of the other modules the whole."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.clock import Clock
from durabus.errors import EventNotFound, LeaseLost, NotADeadLetter
from durabus.lifecycle.state import NOT_YOURS
from durabus.model.claim import LockClaim
from durabus.model.event import Event
from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.model.limits import check_name
from durabus.model.query import DeadLetterPage
from durabus.store.events import EventRef
from durabus.stores.redis.claims import RedisClaims, RedisProcesses
from durabus.stores.redis.connection import parse_url
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.events import FORGET_AT_ONCE, RedisEvents, known_ref
from durabus.stores.redis.log import RedisLog
from durabus.stores.redis.records import decode_lock, events_of, given
from durabus.stores.redis.results import RedisResults

_bus = msgspec.msgpack.Decoder(tuple[float, float, float | bool, int]).decode
_handlers = msgspec.msgpack.Decoder(list[tuple[str, str, str, float, float, float | bool]]).decode


class RedisRegistrations(RedisCore):
    """Implements ``store.registrations.Registrations`` on Redis."""

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


class RedisLocks(RedisCore):
    """Implements ``store.locks.Locks`` on Redis."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")
        record = await self._call("claim_lock", key, worker_id, token, lease)
        return decode_lock(record).claim(token) if record else None

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        record = await self._call("renew_lock", claim.key, claim.token, claim.fence, lease)
        if not record:
            raise LeaseLost(claim.key, NOT_YOURS)
        return decode_lock(record).claim(claim.token)

    async def release_lock(self, claim: LockClaim) -> None:
        if await self._call("release_lock", claim.key, claim.token, claim.fence):
            raise LeaseLost(claim.key, NOT_YOURS)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        self._check_open()
        locks: list[LockClaim] = []
        while len(locks) < limit:
            go_on, *records = await self._call("list_locks", after, limit - len(locks))
            locks += [decode_lock(record).claim("") for record in records]
            if not go_on:
                break
            after = go_on.decode()
        return locks


class RedisDeadLetters(RedisCore):
    """Implements ``store.dead_letters.DeadLetters`` on Redis."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        total, *records = await self._call("list_dead_letters", bus, max(limit, 0), max(offset, 0))
        return DeadLetterPage(events=events_of(records), total=total)

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        if not refs:
            self._check_open()
            return []
        refused, status, *records = await self._call("requeue_dead_letters", *(known_ref(ref) for ref in refs))
        if refused and status:
            raise NotADeadLetter(refs[refused - 1], status.decode())
        if refused:
            raise EventNotFound(refs[refused - 1])
        return events_of(records)

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        self._check_open()
        purged = 0
        while purged < limit:
            at_once = min(limit - purged, FORGET_AT_ONCE)
            count: int = await self._call("purge_dead_letters", created_until_ts, bus, at_once)
            purged += count
            if count < at_once:
                break
        return purged

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        self._check_open()
        known, purged = [id_ for id_ in dict.fromkeys(ids) if id_ > 0], list[int]()
        for start in range(0, len(known), FORGET_AT_ONCE):
            purged += await self._call("purge_dead_letters_by_id", *known[start : start + FORGET_AT_ONCE])
        return purged


class RedisStore(
    RedisRegistrations,
    RedisEvents,
    RedisClaims,
    RedisProcesses,
    RedisResults,
    RedisLocks,
    RedisLog,
    RedisDeadLetters,
):
    """One Redis or Valkey server, or one slot of a cluster, shared by any number of processes and hosts."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> RedisStore:
        """Return the store for ``redis://host:port/database``. It is not open yet."""
        return cls(parse_url(url), clock)
