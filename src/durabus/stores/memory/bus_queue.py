"""The queue of one bus: which event is next, which lease ends first; its ordering keys, and offered handlers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from durabus.lifecycle.handlers import has_offers, runs_under
from durabus.lifecycle.state import EventState
from durabus.model.event import Event
from durabus.model.statuses import EventStatus


class OrderingKeys:
    """The ids of the live events of each ordering key, and which of them is PROCESSING."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[int]] = {}
        self._members: set[int] = set()
        self._working: dict[str, int] = {}

    def wait(self, event: Event) -> int | None:
        """Add a PENDING event. Returns the first event of its key, or None if one of them is PROCESSING."""
        key = event.ordering_key
        if key is None:
            return None
        if self._working.get(key) == event.id:
            del self._working[key]
        self._enqueue(key, event.id)
        return self._first(key)

    def work(self, event: Event) -> None:
        """Mark an event as PROCESSING."""
        key = event.ordering_key
        if key is not None:
            self._enqueue(key, event.id)
            self._working[key] = event.id

    def leave(self, event: Event) -> int | None:
        """Remove an event that has ended. Returns as ``wait``."""
        key = event.ordering_key
        if key is None:
            return None
        if self._working.get(key) == event.id:
            del self._working[key]
        self._members.discard(event.id)
        return self._first(key)

    def is_next(self, event: Event) -> bool:
        """Return whether the event is the first of its key and none of them is PROCESSING."""
        key = event.ordering_key
        return key is None or self._first(key) == event.id

    def _enqueue(self, key: str, id_: int) -> None:
        if id_ not in self._members:
            self._members.add(id_)
            heappush(self._waiting.setdefault(key, []), id_)

    def _first(self, key: str) -> int | None:
        waiting = self._waiting.get(key, [])
        while waiting and waiting[0] not in self._members:
            heappop(waiting)
        if not waiting:
            self._waiting.pop(key, None)
            return None
        return None if key in self._working else waiting[0]


class BusQueue:
    """A deque and three heaps. An entry may be outdated: it is compared with its event when it comes up."""

    def __init__(self, states: Mapping[int, EventState]) -> None:
        self._states = states
        self._in_order: deque[tuple[int, int]] = deque()
        """Ready events that came in queue order, as nearly all do. A heap would sort them again with every claim."""
        self._ready: list[tuple[int, int]] = []
        """Other ready events."""
        self._waiting: list[tuple[float, int]] = []
        self._leases: list[tuple[float, int]] = []
        self.live: set[int] = set()
        self.history: dict[int, None] = {}
        """COMPLETED and CANCELLED events."""
        self.cancelled: set[int] = set()
        """The CANCELLED ones of these."""
        self._ordering_keys = OrderingKeys()

    def pending(self, event: Event, now: float) -> None:
        """Add an event that may be claimed once it is due."""
        self.live.add(event.id)
        if event.metadata_json is not None:
            self._make_way(self._ordering_keys.wait(event))
        if event.due_ts <= now:
            self._enter((-event.priority, event.id))
        else:
            heappush(self._waiting, (event.due_ts, event.id))

    def _enter(self, entry: tuple[int, int]) -> None:
        if not self._in_order or entry > self._in_order[-1]:
            self._in_order.append(entry)
        else:
            heappush(self._ready, entry)

    def leased(self, event: Event) -> None:
        """Add the lease of a claimed event."""
        if event.metadata_json is not None:
            self._ordering_keys.work(event)
        heappush(self._leases, (event.expires_ts or 0.0, event.id))

    def left(self, event: Event) -> None:
        """Remove an event that has ended or was deleted."""
        self.live.discard(event.id)
        if event.metadata_json is not None:
            self._make_way(self._ordering_keys.leave(event))

    def _make_way(self, head: int | None) -> None:
        """Add the first event of an ordering key again: it may be claimed once it is due."""
        state = None if head is None else self._states.get(head)
        if state is not None and state.event.status is EventStatus.PENDING:
            heappush(self._waiting, (state.event.due_ts, state.event.id))

    def expired(self, now: float) -> Iterator[int]:
        """Remove and yield the ids of events whose lease is over."""
        leases = self._leases
        while leases and leases[0][0] <= now:
            entry = heappop(leases)
            while leases and leases[0] == entry:
                heappop(leases)  # the lease was renewed twice at one instant
            state = self._states.get(entry[1])
            # A renewed lease has its own entry, so each id comes up once.
            if (
                state is not None
                and state.event.status is EventStatus.PROCESSING
                and state.event.expires_ts == entry[0]
            ):
                yield entry[1]

    def eligible(self, now: float) -> Iterator[int]:
        """Remove and yield the ids that may be claimed, in queue order. The caller adds unused ones by ``pending``."""
        while self._waiting and self._waiting[0][0] <= now:
            _, id_ = heappop(self._waiting)
            state = self._states.get(id_)
            if state is not None:
                self._enter((-state.event.priority, id_))
        in_order, ready = self._in_order, self._ready
        while in_order or ready:
            entry = in_order.popleft() if in_order and not (ready and ready[0] < in_order[0]) else heappop(ready)
            while ready and ready[0] == entry:
                heappop(ready)  # the first event of a key is added each time another one leaves
            id_ = entry[1]
            state = self._states.get(id_)
            if state is None or state.event.status is not EventStatus.PENDING or state.event.due_ts > now:
                continue
            # An event that is not the first of its key leaves the heap, and ``_make_way`` adds it again later.
            if state.event.metadata_json is None or self._ordering_keys.is_next(state.event):
                yield id_

    def may_claim(self, event: Event, now: float) -> bool:
        """Return whether ``eligible`` would yield the event."""
        due = event.status is EventStatus.PENDING and event.due_ts <= now
        return due and (event.metadata_json is None or self._ordering_keys.is_next(event))

    def next_instant(self) -> float | None:
        """Return when an event can be claimed: 0 for now, else when the next one becomes due or the next lease ends."""
        self._drop_stale(self._in_order, deque.popleft, EventStatus.PENDING)
        self._drop_stale(self._ready, heappop, EventStatus.PENDING)
        if self._in_order or self._ready:
            return 0.0
        self._drop_stale(self._waiting, heappop, EventStatus.PENDING)
        self._drop_stale(self._leases, heappop, EventStatus.PROCESSING)
        return min([heap[0][0] for heap in (self._waiting, self._leases) if heap], default=None)

    def _drop_stale(self, entries: Any, pop: Callable[[Any], object], status: EventStatus) -> None:
        """Remove entries until the first one belongs to an event that is still in ``status``."""
        while entries:
            state = self._states.get(entries[0][1])
            if state is not None and state.event.status is status:
                return
            pop(entries)


class Offers:
    """The events of each bus that have handlers which are offered or claimed by themselves."""

    def __init__(self, states: Mapping[int, EventState]) -> None:
        self._states = states
        self._by_bus: dict[str, set[int]] = {}
        """Events that have no such handler any more may be among them."""

    def note(self, state: EventState) -> None:
        """Remember an event with offered handlers, so that a worker that asks for such handlers finds it."""
        if has_offers(state):
            self._by_bus.setdefault(state.event.bus, set()).add(state.event.id)

    def all(self) -> list[EventState]:
        """Return the events of all buses with offered or claimed handlers."""
        return [self._states[id_] for bus in list(self._by_bus) for id_ in self.of(bus)]

    def runs_under(self, lock_key: str, now: float) -> bool:
        """Return whether a handler that was claimed under the lock of a serial mode may still run."""
        return any(runs_under(state, lock_key, now) for state in self.all())

    def of(self, bus: str) -> list[int]:
        """Return the events of a bus with offered or claimed handlers, in order, and forget the others."""
        known = self._by_bus.pop(bus, ())
        found = sorted(id_ for id_ in known if id_ in self._states and has_offers(self._states[id_]))
        if found:
            self._by_bus[bus] = set(found)
        return found
