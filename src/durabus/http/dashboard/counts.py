"""Figures that cost the store some work. A page shows the newest there are and never waits for long."""

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
"""Seconds that a page waits for a figure that was never known, or is old."""
BRIEFLY = 0.005
"""The same where the one before is young enough to be shown."""
YOUNG = 3.0
AT_LEAST_EVERY = 1.0
SHARE = 50
"""A figure is looked up again after this many times what it cost: the store spends a fiftieth on it at most."""
MAX_READINGS = 200
MAX_IN_FLIGHT = 500
LOOKS = 3
"""At most so many, until numbers and oldest event fit together."""


class Reading(Generic[T]):
    """One figure."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._value: T | None = None
        self._again = 0.0
        self._taken = 0.0
        self._task: asyncio.Task[None] | None = None

    async def newest(self) -> T | None:
        """None if it was never known so far."""
        if self._task is None and monotonic() >= self._again:
            self._task = asyncio.create_task(self._refresh())
        if self._task is not None:
            young = self._value is not None and monotonic() - self._taken < YOUNG
            await asyncio.wait({self._task}, timeout=BRIEFLY if young else PATIENCE)
        return self._value

    async def stop(self) -> None:
        """Whoever looks is to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _refresh(self) -> None:
        begun = monotonic()
        try:
            self._value = await self._look()
            self._taken = begun
        except StoreError as error:
            logger.warning("a figure of the dashboard is not known: %s", error)
        finally:
            self._again = monotonic() + max(AT_LEAST_EVERY, SHARE * (monotonic() - begun))
            self._task = None


class Oldest(msgspec.Struct, frozen=True):
    """The event that waits longest, and for how long when it was looked up."""

    id: int
    age: float
    due_for: float
    """Below 0 if its time has not come."""


class Counted(msgspec.Struct, frozen=True):
    """The queue at one moment: events by status, the oldest that waits, and when that was."""

    counts: Counts
    capped: bool
    """At least so many."""
    oldest: Oldest | None
    """The PENDING event with the smallest id. None with some pending: none of them stayed long enough to be seen."""
    at_ts: float


class Readings:
    """All figures that were asked for lately, each of one bus and one set of tags."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._readings: dict[tuple[str, str, frozenset[str]], Reading[Any]] = {}

    async def counts(self, bus: str, principal: Principal) -> Counted | None:
        """How many events there are, and which one waits longest; None if it is not known yet."""

        async def look() -> Counted:
            return await count_queue(self._api, principal, bus)

        found: Counted | None = await self._reading("counts", bus, principal, look).newest()
        return found

    async def in_flight(self, bus: str, principal: Principal) -> list[Event]:
        """PROCESSING events, newest first, some hundred at most, without their payloads."""

        async def look() -> list[Event]:
            query = msgspec.structs.replace(_query(bus, principal, EventStatus.PROCESSING), limit=MAX_IN_FLIGHT)
            found = (await self._api.store.find(query)).events
            return [msgspec.structs.replace(event, payload_json="null") for event in found]

        found: list[Event] | None = await self._reading("in flight", bus, principal, look).newest()
        return found or []

    async def log_hold(self, bus: str, principal: Principal) -> LogHold | None:
        """The open transaction that all readers of the log wait for; None also if it is not known yet."""
        return await self._reading("log hold", bus, principal, self._api.store.log_hold).newest()

    async def stop(self) -> None:
        """Before the store is closed."""
        while self._readings:  # somebody may come to look even now
            await self._readings.popitem()[1].stop()

    def _reading(self, what: str, bus: str, principal: Principal, look: Callable[[], Awaitable[T]]) -> Reading[T]:
        key = (what, bus, principal.tags)
        found = self._readings.pop(key, None) or Reading(look)
        self._readings[key] = found
        if len(self._readings) > MAX_READINGS:
            del self._readings[next(iter(self._readings))]
        return found


async def count_queue(api: Api, principal: Principal, bus: str) -> Counted:
    """Numbers and oldest event that fit together: the store is asked for both, and again if they contradict each other.

    A queue that is empty in one of two looks is emptied all the time; then it is told as that.
    """
    for _ in range(LOOKS):
        counts, capped = await count_events(api, principal, bus)
        found = await oldest(api, _query(bus, principal, EventStatus.PENDING)) if counts.pending else []
        if found or not counts.pending:
            break
    now = await api.store.now()
    eldest = Oldest(found[0].id, now - found[0].created_ts, now - found[0].due_ts) if found else None
    return Counted(counts, capped, eldest, now)


def _query(bus: str, principal: Principal, status: EventStatus) -> EventQuery:
    return EventQuery(bus=bus, statuses=(status,), tags=principal.narrow(()), limit=1)


async def oldest(api: Api, query: EventQuery) -> list[Event]:
    """The matching event with the smallest id. Stores answer from the newest on, so it is searched by halves."""
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
