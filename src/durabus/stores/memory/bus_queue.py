"""The queue of one bus: who is next, who waits, whose lease ends first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from durabus.lifecycle.state import EventState
from durabus.model.event import Event
from durabus.model.statuses import EventStatus
from durabus.stores.memory.ordering_keys import OrderingKeys


class BusQueue:
    """A line and three heaps whose entries are checked against the event when they come up, never searched for."""

    def __init__(self, states: Mapping[int, EventState]) -> None:
        self._states = states
        self._in_order: deque[tuple[int, int]] = deque()
        """Who came in queue order, as nearly all do: a heap would sort them again with every claim."""
        self._ready: list[tuple[int, int]] = []
        """The others who may be claimed."""
        self._waiting: list[tuple[float, int]] = []
        self._leases: list[tuple[float, int]] = []
        self.live: set[int] = set()
        self.history: dict[int, None] = {}
        self._ordering_keys = OrderingKeys()

    def pending(self, event: Event, now: float) -> None:
        """The event may be claimed once it is due."""
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
        """The event is claimed until its lease is over."""
        if event.metadata_json is not None:
            self._ordering_keys.work(event)
        heappush(self._leases, (event.expires_ts or 0.0, event.id))

    def left(self, event: Event) -> None:
        """The event has ended, or is gone."""
        self.live.discard(event.id)
        if event.metadata_json is not None:
            self._make_way(self._ordering_keys.leave(event))

    def _make_way(self, head: int | None) -> None:
        """The first of a key may be claimed now, if it is due; what is not is found when it comes up."""
        state = None if head is None else self._states.get(head)
        if state is not None and state.event.status is EventStatus.PENDING:
            heappush(self._waiting, (state.event.due_ts, state.event.id))

    def expired(self, now: float) -> Iterator[int]:
        """Take out the ids whose lease is over."""
        leases = self._leases
        while leases and leases[0][0] <= now:
            entry = heappop(leases)
            while leases and leases[0] == entry:
                heappop(leases)  # renewed twice at one instant
            state = self._states.get(entry[1])
            # A renewed lease has an entry of its own, so each id comes out once.
            if (
                state is not None
                and state.event.status is EventStatus.PROCESSING
                and state.event.expires_ts == entry[0]
            ):
                yield entry[1]

    def eligible(self, now: float) -> Iterator[int]:
        """Take out the ids that may be claimed, in queue order. What is not used goes back by ``pending``."""
        while self._waiting and self._waiting[0][0] <= now:
            _, id_ = heappop(self._waiting)
            state = self._states.get(id_)
            if state is not None:
                self._enter((-state.event.priority, id_))
        in_order, ready = self._in_order, self._ready
        while in_order or ready:
            entry = in_order.popleft() if in_order and not (ready and ready[0] < in_order[0]) else heappop(ready)
            while ready and ready[0] == entry:
                heappop(ready)  # the first of a key comes back each time another one leaves
            id_ = entry[1]
            state = self._states.get(id_)
            if state is None or state.event.status is not EventStatus.PENDING or state.event.due_ts > now:
                continue
            # Who is not the first of its key leaves the heap, and comes back when it is.
            if state.event.metadata_json is None or self._ordering_keys.is_next(state.event):
                yield id_

    def may_claim(self, event: Event, now: float) -> bool:
        """Whether ``eligible`` would come upon it."""
        due = event.status is EventStatus.PENDING and event.due_ts <= now
        return due and (event.metadata_json is None or self._ordering_keys.is_next(event))

    def next_instant(self) -> float | None:
        """When there is something to claim: 0 for now, else when the next event becomes due or the next lease ends."""
        self._drop_stale(self._in_order, deque.popleft, EventStatus.PENDING)
        self._drop_stale(self._ready, heappop, EventStatus.PENDING)
        if self._in_order or self._ready:
            return 0.0
        self._drop_stale(self._waiting, heappop, EventStatus.PENDING)
        self._drop_stale(self._leases, heappop, EventStatus.PROCESSING)
        return min([heap[0][0] for heap in (self._waiting, self._leases) if heap], default=None)

    def _drop_stale(self, entries: Any, pop: Callable[[Any], object], status: EventStatus) -> None:
        """Let the first entry be one whose event is still in ``status``."""
        while entries:
            state = self._states.get(entries[0][1])
            if state is not None and state.event.status is status:
                return
            pop(entries)
