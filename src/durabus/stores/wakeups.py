"""Two tables that stores share: the workers that wait for events of a bus, and the buses that got events since a claim
found none.

Redis and SQLite keep their own lists of waiting workers. On Redis a list is also the list of subscriptions and belongs
to one event loop. On SQLite it belongs to the writer's thread, which sets an alarm for each bus.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

REMEMBERED_BUSES = 10_000
ENDS = "\x01ends:"
"""Stands in the place of a bus for those that wait for the ends of events, followed by their node where hints carry it.
No bus can have such a name."""


class WaitingWorkers:
    """The workers that wait, by bus. Any thread may use it. A lost wake-up costs latency, nothing else."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._by_bus: dict[str, list[asyncio.Future[None]]] = {}
        self.planned: set[str] = set()
        """The buses whose workers are woken after this turn of the event loop, if that is needed then."""

    def __contains__(self, bus: object) -> bool:
        """Whether a worker waits for this bus."""
        return bus in self._by_bus

    def add(self, bus: str) -> asyncio.Future[None]:
        """Return a future that resolves when ``bus`` may have events to claim. The caller passes it to ``remove``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._gate:
            self._by_bus.setdefault(bus, []).append(future)
            self.planned.discard(bus)
        return future

    def remove(self, bus: str, future: asyncio.Future[None]) -> None:
        """Remove a worker that was woken or stopped waiting."""
        future.cancel()
        with self._gate:
            left = [other for other in self._by_bus.pop(bus, ()) if other is not future]
            if left:
                self._by_bus[bus] = left

    def wake(self, bus: str | None) -> None:
        """Wake the workers of a bus; with None, of all buses."""
        with self._gate:
            if bus is None:
                woken = [future for futures in self._by_bus.values() for future in futures]
                self._by_bus.clear()
            else:
                woken = self._by_bus.pop(bus, [])
        if not woken:
            return
        here = _running_loop()
        for future in woken:
            loop = future.get_loop()
            if loop is here:
                _resolve(future)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)

    def wake_after_turn(self, bus: str, is_needed: Callable[[], bool]) -> None:
        """Wake the workers of a bus. If all of them belong to the running event loop, they are woken after this turn of
        it, and only if ``is_needed`` then.
        """
        here = _running_loop()
        with self._gate:
            is_planned = here is not None and all(one.get_loop() is here for one in self._by_bus.get(bus, ()))
            if is_planned:
                self.planned.add(bus)
        if here is None or not is_planned:
            self.wake(bus)
        else:
            here.call_soon(self._wake_if_needed, bus, is_needed)

    def _wake_if_needed(self, bus: str, is_needed: Callable[[], bool]) -> None:
        self.planned.discard(bus)
        if is_needed():
            self.wake(bus)


class BusNews:
    """Whether a bus got events since a claim got nothing. Any thread may use it.

    Events that a claim could not get (they have other tags, or the lock is held) must not wake its worker again and
    again.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._tick = 0
        self._news: dict[str, int] = {}
        self._news_of_all = 0
        self._in_vain: dict[str, int] = {}

    def mark(self) -> int:
        """Return a mark before a claim. Later news counts as new for a worker whose claim got nothing."""
        return self._tick

    def add(self, bus: str | None) -> None:
        """A bus has new events; with None, any bus may have."""
        with self._gate:
            self._tick += 1
            if bus is None:
                self._news_of_all = self._tick
            else:
                self._remember_few()
                self._news[bus] = self._tick

    def claimed(self, bus: str, mark: int, *, anything: bool) -> None:
        """Remember whether a claim that began at ``mark`` got events."""
        with self._gate:
            self._remember_few()
            if anything:
                self._in_vain.pop(bus, None)
            else:
                self._in_vain[bus] = mark

    def has(self, bus: str) -> bool:
        """Return whether new events came since the last claim that got nothing."""
        with self._gate:
            since = self._in_vain.get(bus)
            return since is None or max(self._news.get(bus, 0), self._news_of_all) > since

    def _remember_few(self) -> None:
        """Limit the tables: bus names come and go, also those of buses that no worker here claims from."""
        if len(self._news) + len(self._in_vain) > REMEMBERED_BUSES:
            self._news.clear()
            self._in_vain.clear()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
