"""Events as people see them: lists, counts, one event with its log and results, and the log as it is written.

A caller that may see only some tags passes these tags. The store returns events with their payloads, up to 1 MiB each,
so this module reads a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from durabus.clock import monotonic
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.query import Counts, EventQuery
from durabus.model.result import HandlerResult
from durabus.model.statuses import HISTORY, EventStatus
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

T = TypeVar("T")

AT_ONCE = 200
COUNT_UP_TO = 10_000
COUNT_WITHIN = 1.0
"""The store counts by status alone. With tags this module counts events one by one, up to these limits."""
LOOKS = 3
"""Maximum number of reads until the counts and the oldest event are consistent."""
LOG_PAGE = 500
MAX_CHILDREN = 20


class Listed(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page and the total number; ``capped``: the total is a lower bound."""

    items: list[T]
    total: int
    capped: bool = False


class EventCounts(msgspec.Struct, frozen=True):
    """Events by status; ``capped``: counting stopped at a limit, so the counts are lower bounds."""

    counts: Counts
    capped: bool


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


class FoundEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a search, newest first."""

    events: list[Event]
    next_before_id: int | None
    reasons: dict[int, str | None]
    """Maps the event id to the reason why the event completed without work, such as "no handler", or was cancelled."""
    at_ts: float


class EventDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its log entries, oldest first, and its stored results in the order in which they came."""

    event: Event
    trail: list[LogEntry]
    results: list[HandlerResult]

    @property
    def last_results(self) -> Sequence[HandlerResult]:
        """The stored results, or else those of the newest log entry that has some: it keeps a copy of them."""
        return self.results or next((entry.results for entry in reversed(self.trail) if entry.results), ())


class EventFamily(msgspec.Struct, frozen=True, kw_only=True):
    """The parent of an event, if it is stored, and its newest children, at most ``MAX_CHILDREN``."""

    parent: Event | None
    children: list[Event]


async def find_events(store: EventStore, query: EventQuery) -> FoundEvents:
    """One page of a search, with the reasons of its events."""
    page, now = await store.find(query), await store.now()
    return FoundEvents(
        events=page.events,
        next_before_id=page.next_before_id,
        reasons={event.id: await _reason(store, event) for event in page.events},
        at_ts=now,
    )


async def _reason(store: EventStore, event: Event) -> str | None:
    if event.status not in HISTORY:
        return None
    trail = await store.read_event_log(event.id)
    return trail[-1].reason if trail else None


async def read_event_details(store: EventStore, ref: EventRef) -> EventDetails | None:
    """One event in full; None if it is not stored. On a sharded store, only the shard of the event has to respond."""
    event = await store.get_event(ref)
    if event is None:
        return None
    trail, (results,) = await store.read_event_log(event.id), await store.read_results([event.id])
    return EventDetails(event=event, trail=trail, results=list(results))


async def read_family(store: EventStore, event: Event) -> EventFamily:
    """The parent and the children of an event. On a sharded store they may be on any shard."""
    children = (await store.find(EventQuery(parent_ids=(event.event_id,), limit=MAX_CHILDREN))).events
    parent = None if event.parent_id is None else await store.get_event(event.parent_id)
    return EventFamily(parent=parent, children=children)


async def follow_log(
    store: EventStore, after: str, *, every: float, stopping: asyncio.Event
) -> AsyncGenerator[list[LogEntry], None]:
    """Yield the entries after a position in commit order, page by page, until ``stopping`` is set.

    At the end of the log it yields what is left, maybe nothing, and reads again after ``every`` seconds.
    """
    while not stopping.is_set():
        page = await store.read_log(after=after, limit=LOG_PAGE)
        after = page.next
        yield page.entries
        if len(page.entries) < LOG_PAGE:
            await _pause(every, stopping)


async def _pause(duration: float, stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(duration):
            await stopping.wait()
    except TimeoutError:
        return


async def list_events(
    store: EventStore, query: EventQuery, *, limit: int, offset: int, show: Callable[[Event], T]
) -> Listed[T]:
    """One page of events, newest first. The total ignores ``before_id``: it does not depend on the page."""
    items: list[T] = []
    number = 0
    async for events in _pages(store, query, offset + limit):
        items += [show(event) for event in events[max(offset - number, 0) : offset + limit - number]]
        number += len(events)
    total, capped = await _count(store, msgspec.structs.replace(query, before_id=None))
    return Listed(items=items, total=max(total, number) if capped else total, capped=capped)


async def count_events(store: EventStore, bus: str, tags: tuple[str, ...] = ()) -> EventCounts:
    """Count the events of a bus by status: all, or those with one of the tags."""
    if not tags:
        return EventCounts(await store.counts(bus), capped=False)
    numbers, capped = dict.fromkeys(EventStatus, 0), False
    for status in EventStatus:
        numbers[status], stopped = await _count(store, EventQuery(bus=bus, statuses=(status,), tags=tags))
        capped = capped or stopped
    return EventCounts(Counts(**{status.lower(): number for status, number in numbers.items()}), capped)


async def count_queue(store: EventStore, bus: str, tags: tuple[str, ...] = ()) -> QueueCounts:
    """Read the counts and the oldest event, and read them again if they contradict each other.

    If they still do after some reads, the queue empties all the time: then there is no oldest event.
    """
    waiting = EventQuery(bus=bus, statuses=(EventStatus.PENDING,), tags=tags, limit=1)
    for _ in range(LOOKS):
        counted = await count_events(store, bus, tags)
        found = await oldest(store, waiting) if counted.counts.pending else None
        if found is not None or not counted.counts.pending:
            break
    now = await store.now()
    eldest = None if found is None else Oldest(found.id, now - found.created_ts, now - found.due_ts)
    return QueueCounts(counted.counts, counted.capped, eldest, now)


async def oldest(store: EventStore, query: EventQuery) -> Event | None:
    """The matching event with the smallest id. Stores return the newest first, so this is a binary search."""
    found = (await store.find(query)).events
    below = 0
    while found and below + 1 < found[0].id:
        middle = (below + found[0].id) // 2 + 1
        older = (await store.find(msgspec.structs.replace(query, before_id=middle))).events
        if older:
            found = older
        else:
            below = middle - 1
    return found[0] if found else None


async def _count(store: EventStore, query: EventQuery) -> tuple[int, bool]:
    if not query.tags:
        counts = await store.counts(query.bus)
        return sum(getattr(counts, status.lower()) for status in query.statuses or tuple(EventStatus)), False
    number, deadline = 0, monotonic() + COUNT_WITHIN
    try:
        async with asyncio.timeout(COUNT_WITHIN):  # a single page may take long if few of many events match
            async for events in _pages(store, query, COUNT_UP_TO + 1):
                number += len(events)
                if number > COUNT_UP_TO or monotonic() > deadline:
                    return min(number, COUNT_UP_TO), True
    except TimeoutError:
        return number, True
    return number, False


async def _pages(store: EventStore, query: EventQuery, count: int) -> AsyncIterator[list[Event]]:
    """Up to ``count`` events, a few at a time."""
    before: int | None = query.before_id
    while count > 0:
        page = await store.find(msgspec.structs.replace(query, before_id=before, limit=min(AT_ONCE, count)))
        if page.events:
            yield page.events
        count -= len(page.events)
        before = page.next_before_id
        if before is None:
            return
