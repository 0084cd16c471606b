"""The queue of one bus: who is next, who waits, whose lease ends first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from durabus.kernel.state import EventState
from durabus.model.event import Event
from durabus.model.statuses import EventStatus


class Lane:
    """Three heaps whose entries are checked against the event when they come up, never searched for."""

    def __init__(self, states: Mapping[int, EventState]) -> None:
        self._states = states
        self._ready: list[tuple[int, int]] = []
        self._waiting: list[tuple[float, int]] = []
        self._leases: list[tuple[float, int]] = []
        self.live: set[int] = set()
        self.history: dict[int, None] = {}

    def pending(self, event: Event, now: float) -> None:
        """The event may be claimed once it is due."""
        self.live.add(event.id)
        if event.due_ts <= now:
            heappush(self._ready, (-event.priority, event.id))
        else:
            heappush(self._waiting, (event.due_ts, event.id))

    def leased(self, event: Event) -> None:
        """The event is claimed until its lease is over."""
        heappush(self._leases, (event.expires_ts or 0.0, event.id))

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
                heappush(self._ready, (-state.event.priority, id_))
        while self._ready:
            _, id_ = heappop(self._ready)
            state = self._states.get(id_)
            if state is not None and state.event.status is EventStatus.PENDING and state.event.due_ts <= now:
                yield id_

    def next_instant(self) -> float | None:
        """When there is something to claim: 0 for now, else when the next event becomes due or the next lease ends."""
        _drop_stale(self._ready, self._states, EventStatus.PENDING)
        if self._ready:
            return 0.0
        _drop_stale(self._waiting, self._states, EventStatus.PENDING)
        _drop_stale(self._leases, self._states, EventStatus.PROCESSING)
        return min([heap[0][0] for heap in (self._waiting, self._leases) if heap], default=None)


def _drop_stale(heap: list[Any], states: Mapping[int, EventState], status: EventStatus) -> None:
    """Let the first entry of ``heap`` be one whose event is still in ``status``."""
    while heap:
        state = states.get(heap[0][1])
        if state is not None and state.event.status is status:
            return
        heappop(heap)
