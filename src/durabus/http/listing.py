"""Lists and totals of the events that the sender may see.

The store returns events with their payloads, up to 1 MiB each, so this module reads a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import msgspec

from durabus.clock import monotonic
from durabus.http.api import Api
from durabus.http.auth.access import Principal
from durabus.model.event import Event
from durabus.model.query import Counts, EventQuery
from durabus.model.statuses import EventStatus

T = TypeVar("T")

MAX_PAGE = 1_000
MAX_OFFSET = 10_000
AT_ONCE = 200
COUNT_UP_TO = 10_000
COUNT_WITHIN = 1.0
"""The store counts by status alone. With tags the server counts events one by one, up to these limits."""


class Listed(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page and the total number; ``capped``: the total is a lower bound."""

    items: list[T]
    total: int
    capped: bool = False


async def list_events(
    api: Api,
    principal: Principal,
    query: EventQuery,
    *,
    limit: int,
    offset: int,
    show: Callable[[Event], T],
) -> Listed[T]:
    """One page of events, newest first. The total ignores ``before_id``: it does not depend on the page."""
    query = msgspec.structs.replace(query, tags=principal.narrow(query.tags))
    items: list[T] = []
    number = 0
    async for events in _pages(api, query, offset + limit):
        items += [show(event) for event in events[max(offset - number, 0) : offset + limit - number]]
        number += len(events)
    total, capped = await _count(api, msgspec.structs.replace(query, before_id=None))
    return Listed(items=items, total=max(total, number) if capped else total, capped=capped)


async def count_events(api: Api, principal: Principal, bus: str) -> tuple[Counts, bool]:
    """Events by status, and whether counting stopped at a limit."""
    if not principal.tags:
        return await api.store.counts(bus), False
    numbers, capped = dict.fromkeys(EventStatus, 0), False
    for status in EventStatus:
        query = EventQuery(bus=bus, statuses=(status,), tags=principal.narrow(()))
        numbers[status], stopped = await _count(api, query)
        capped = capped or stopped
    return Counts(**{status.lower(): number for status, number in numbers.items()}), capped


async def _count(api: Api, query: EventQuery) -> tuple[int, bool]:
    if not query.tags:
        counts = await api.store.counts(query.bus)
        return sum(getattr(counts, status.lower()) for status in query.statuses or tuple(EventStatus)), False
    number, deadline = 0, monotonic() + COUNT_WITHIN
    try:
        async with asyncio.timeout(COUNT_WITHIN):  # a single page may take long if few of many events match
            async for events in _pages(api, query, COUNT_UP_TO + 1):
                number += len(events)
                if number > COUNT_UP_TO or monotonic() > deadline:
                    return min(number, COUNT_UP_TO), True
    except TimeoutError:
        return number, True
    return number, False


async def _pages(api: Api, query: EventQuery, count: int) -> AsyncIterator[list[Event]]:
    """Up to ``count`` events, a few at a time."""
    before: int | None = query.before_id
    while count > 0:
        page = await api.store.find(msgspec.structs.replace(query, before_id=before, limit=min(AT_ONCE, count)))
        if page.events:
            yield page.events
        count -= len(page.events)
        before = page.next_before_id
        if before is None:
            return
