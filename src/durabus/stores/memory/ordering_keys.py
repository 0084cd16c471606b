"""Events of one ordering key, which run one after the other."""

from __future__ import annotations

from heapq import heappop, heappush

from durabus.model.event import Event


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
