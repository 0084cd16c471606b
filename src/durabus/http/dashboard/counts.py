"""Counts that are costly for the store, kept in a cache. A page shows the newest values and never waits long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.http.api import Api, logger
from durabus.http.auth.access import Principal
from durabus.http.listing import count_events
from durabus.model.event import Event
from durabus.model.log_entry import LogHold
from durabus.model.query import Counts, EventQuery
from durabus.model.statuses import EventStatus

T = TypeVar("T")

PATIENCE = 0.04
"""Seconds that a page waits for a value that is unknown or old."""
BRIEFLY = 0.005
"""Seconds that a page waits for a new value if the cached one is young."""
YOUNG = 3.0
AT_LEAST_EVERY = 1.0
SHARE = 50
"""A value is read again after this many times its cost, so the store spends at most a fiftieth of its time on it."""
MAX_CACHED = 200
MAX_IN_FLIGHT = 500
LOOKS = 3
"""Maximum number of reads until the counts and the oldest event are consistent."""


class CachedValue(Generic[T]):
    """One cached value, read again in the background when it is old."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._value: T | None = None
        self._again = 0.0
        self._taken = 0.0
        self._task: asyncio.Task[None] | None = None

    async def newest(self) -> T | None:
        """The newest value; None if it is not known yet."""
        if self._task is None and monotonic() >= self._again:
            self._task = asyncio.create_task(self._refresh())
        if self._task is not None:
            young = self._value is not None and monotonic() - self._taken < YOUNG
            await asyncio.wait({self._task}, timeout=BRIEFLY if young else PATIENCE)
        return self._value

    async def stop(self) -> None:
        """Stop reading in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _refresh(self) -> None:
        begun = monotonic()
        try:
            self._value = await self._look()
            self._taken = begun
        except StoreError as error:
            logger.warning("the dashboard could not read a count: %s", error)
        finally:
            self._again = monotonic() + max(AT_LEAST_EVERY, SHARE * (monotonic() - begun))
            self._task = None


class Oldest(msgspec.Struct, frozen=True):
    """The event that has waited longest, and how long it had waited when it was read."""

    id: int
    age: float
    due_for: float
    """Negative if the event is not due yet."""


class QueueCounts(msgspec.Struct, frozen=True):
    """The state of a queue at one moment: events by status, and the oldest waiting event."""

    counts: Counts
    capped: bool
    """Whether the counts are lower bounds."""
    oldest: Oldest | None
    """The PENDING event with the smallest id. None although events are pending: none stayed long enough to be read."""
    at_ts: float


class CachedCounts:
    """The values that pages asked for recently, each for one bus and one set of tags."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cached: dict[tuple[str, str, frozenset[str]], CachedValue[Any]] = {}

    async def queue(self, bus: str, principal: Principal) -> QueueCounts | None:
        """The state of the queue; None if it is not known yet."""

        async def look() -> QueueCounts:
            return await count_queue(self._api, principal, bus)

        found: QueueCounts | None = await self._value("counts", bus, principal, look).newest()
        return found

    async def in_flight(self, bus: str, principal: Principal) -> list[Event]:
        """The newest PROCESSING events, without their payloads."""

        async def look() -> list[Event]:
            query = msgspec.structs.replace(_query(bus, principal, EventStatus.PROCESSING), limit=MAX_IN_FLIGHT)
            found = (await self._api.store.find(query)).events
            return [msgspec.structs.replace(event, payload_json="null") for event in found]

        found: list[Event] | None = await self._value("in flight", bus, principal, look).newest()
        return found or []

    async def log_hold(self, bus: str, principal: Principal) -> LogHold | None:
        """The open transaction that readers of the log wait for; None if there is none or it is not known yet."""
        return await self._value("log hold", bus, principal, self._api.store.log_hold).newest()

    async def stop(self) -> None:
        """Stop reading in the background. Call it before the store is closed."""
        while self._cached:  # a page view may add a value even now
            await self._cached.popitem()[1].stop()

    def _value(self, what: str, bus: str, principal: Principal, look: Callable[[], Awaitable[T]]) -> CachedValue[T]:
        key = (what, bus, principal.tags)
        found = self._cached.pop(key, None) or CachedValue(look)
        self._cached[key] = found
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return found


async def count_queue(api: Api, principal: Principal, bus: str) -> QueueCounts:
    """Read the counts and the oldest event, and read them again if they contradict each other.

    If they still do after some reads, the queue empties all the time: then there is no oldest event.
    """
    for _ in range(LOOKS):
        counts, capped = await count_events(api, principal, bus)
        found = await oldest(api, _query(bus, principal, EventStatus.PENDING)) if counts.pending else []
        if found or not counts.pending:
            break
    now = await api.store.now()
    eldest = Oldest(found[0].id, now - found[0].created_ts, now - found[0].due_ts) if found else None
    return QueueCounts(counts, capped, eldest, now)


def _query(bus: str, principal: Principal, status: EventStatus) -> EventQuery:
    return EventQuery(bus=bus, statuses=(status,), tags=principal.narrow(()), limit=1)


async def oldest(api: Api, query: EventQuery) -> list[Event]:
    """The matching event with the smallest id. Stores return the newest first, so this is a binary search."""
    found = (await api.store.find(query)).events
    below = 0
    while found and below + 1 < found[0].id:
        middle = (below + found[0].id) // 2 + 1
        older = (await api.store.find(msgspec.structs.replace(query, before_id=middle))).events
        if older:
            found = older
        else:
            below = middle - 1
    return found
