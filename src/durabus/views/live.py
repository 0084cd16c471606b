"""Values that are costly for the store. They are read in the background, so a page never waits long for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.model.event import Event
from durabus.model.log_entry import LogHold
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.views.activity import ActivityByBus, BusActivity
from durabus.views.events import QueueCounts, count_queue
from durabus.views.lakes import LakeView, lakes_of

logger = logging.getLogger("durabus.server")

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


class LiveViews:
    """The values that pages asked for recently, each for one bus and one set of tags. Nothing here is stored."""

    def __init__(self, store: EventStore, stopping: asyncio.Event) -> None:
        self._store = store
        self._cached: dict[tuple[str, str, tuple[str, ...]], CachedValue[Any]] = {}
        self._by_bus = ActivityByBus(store, stopping)

    async def activity(self, bus: str) -> BusActivity:
        """The activity of a bus, as its log shows it."""
        return await self._by_bus.of(bus, PATIENCE)

    async def queue(self, bus: str, tags: tuple[str, ...]) -> QueueCounts | None:
        """The state of the queue; None if it is not known yet."""

        async def look() -> QueueCounts:
            return await count_queue(self._store, bus, tags)

        return await self._value("counts", bus, tags, look).newest()

    async def in_flight(self, bus: str, tags: tuple[str, ...]) -> list[Event]:
        """The newest PROCESSING events, without their payloads."""

        async def look() -> list[Event]:
            query = EventQuery(bus=bus, statuses=(EventStatus.PROCESSING,), tags=tags, limit=MAX_IN_FLIGHT)
            found = (await self._store.find(query)).events
            return [msgspec.structs.replace(event, payload_json="null") for event in found]

        return await self._value("in flight", bus, tags, look).newest() or []

    async def log_hold(self) -> LogHold | None:
        """The open transaction that readers of the log wait for; None if there is none or it is not known yet."""
        return await self._value("log hold", "", (), self._store.log_hold).newest()

    async def lakes(self) -> list[LakeView] | None:
        """The lakes that follow the store; None if they are not known yet."""

        async def look() -> list[LakeView]:
            return await lakes_of(self._store)

        return await self._value("lakes", "", (), look).newest()

    async def stop(self) -> None:
        """Stop reading in the background. Call it before the store is closed. Repeatable."""
        await self._by_bus.stop()
        while self._cached:  # a page view may add a value even now
            await self._cached.popitem()[1].stop()

    def _value(self, what: str, bus: str, tags: tuple[str, ...], look: Callable[[], Awaitable[T]]) -> CachedValue[T]:
        key = (what, bus, tags)
        found = self._cached.pop(key, None) or CachedValue(look)
        self._cached[key] = found
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return found
