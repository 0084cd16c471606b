"""Who sleeps for work on which bus, on whichever event loop, and what wakes them."""

from __future__ import annotations

import asyncio
import threading

from durabus.model.claim import ClaimRequest

_REMEMBERED_BUSES = 10_000


class Wakeup:
    """Hints, not promises: a bus forgotten here costs latency, nothing else. Used from several threads."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._sleepers: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = {}
        self._tick = 0
        self._news: dict[str, int] = {}
        self._all_news = 0
        self._in_vain: dict[str, int] = {}

    def sleep(self, bus: str) -> asyncio.Future[None]:
        """A future that is resolved when ``bus`` may have something."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._gate:
            self._sleepers.setdefault(bus, []).append((loop, future))
        return future

    def leave(self, bus: str, future: asyncio.Future[None]) -> None:
        """The sleeper gave up, or was woken."""
        with self._gate:
            left = [one for one in self._sleepers.get(bus, ()) if one[1] is not future]
            if left:
                self._sleepers[bus] = left
            else:
                self._sleepers.pop(bus, None)

    def wake(self, bus: str | None) -> None:
        """There is news for a bus, or perhaps for all of them."""
        with self._gate:
            self._tick += 1
            if bus is None:
                self._all_news = self._tick
                woken = [one for sleepers in self._sleepers.values() for one in sleepers]
                self._sleepers.clear()
            else:
                self._remember_few()
                self._news[bus] = self._tick
                woken = self._sleepers.pop(bus, [])
        for loop, future in woken:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)

    def listening(self) -> None:
        """What came before this moment was not heard: all that is there now is news."""
        with self._gate:
            self._tick += 1
            self._all_news = self._tick

    def began(self) -> int:
        """The moment before a claim: news that comes after it is news for whoever claimed in vain."""
        return self._tick

    def claimed(self, request: ClaimRequest, began: int, *, anything: bool) -> None:
        """Whether a claim got something. What it did not get is no reason to wake its worker again."""
        with self._gate:
            self._remember_few()
            if anything:
                self._in_vain.pop(request.bus, None)
            else:
                self._in_vain[request.bus] = began

    def is_news(self, bus: str) -> bool:
        """Whether what is there now may be other than what the last claim could not have (other tags, a held lock)."""
        with self._gate:
            since = self._in_vain.get(bus)
            return since is None or max(self._news.get(bus, 0), self._all_news) > since

    def _remember_few(self) -> None:
        """Names of buses come and go, also those that nobody here claims from."""
        if len(self._news) + len(self._in_vain) > _REMEMBERED_BUSES:
            self._news.clear()
            self._in_vain.clear()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
