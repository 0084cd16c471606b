"""Events of one ordering key, one behind the other."""

from __future__ import annotations

from heapq import heappop, heappush

from durabus.model.event import Event


class OrderingKeys:
    """For each key the ids of its live events, and which of them is being worked on."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[int]] = {}
        self._members: set[int] = set()
        self._working: dict[str, int] = {}

    def wait(self, event: Event) -> int | None:
        """The event is PENDING. Answers who is the first of its key, if nobody works on one."""
        key = event.ordering_key
        if key is None:
            return None
        if self._working.get(key) == event.id:
            del self._working[key]
        self._enqueue(key, event.id)
        return self._first(key)

    def work(self, event: Event) -> None:
        """The event is PROCESSING."""
        key = event.ordering_key
        if key is not None:
            self._enqueue(key, event.id)
            self._working[key] = event.id

    def leave(self, event: Event) -> int | None:
        """The event is not live any more. Answers as ``wait``."""
        key = event.ordering_key
        if key is None:
            return None
        if self._working.get(key) == event.id:
            del self._working[key]
        self._members.discard(event.id)
        return self._first(key)

    def is_next(self, event: Event) -> bool:
        """Whether no other event of its key comes first or is being worked on."""
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
