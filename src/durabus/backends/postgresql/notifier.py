"""Telling other processes that a bus has something new: after the commit, and once for all that came meanwhile.

A NOTIFY inside a transaction makes it take a lock of the whole database until its commit is on the disk, so that
publishers side by side no longer share one write: with eight of them that was three times slower here. So only what is
published in a caller's transaction notifies there, because nobody else knows when that commits. A hint that gets lost
with its process costs a worker one poll interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from durabus.errors import DurabusError

logger = logging.getLogger("durabus.postgresql")

PAUSE = 0.005
"""Seconds between two hints: whoever publishes without end does not double the load."""

Send = Callable[[list[str]], Awaitable[None]]


class Notifier:
    """Used on one event loop only. The first hint goes out at once, the next after a pause, with all that came."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._buses: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def tell(self, buses: Iterable[str]) -> None:
        """Something was committed for these buses."""
        self._buses.update(buses)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-notify")

    async def close(self) -> None:
        """Send what is left."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._buses:
            buses, self._buses = self._buses, set()
            try:
                await self._send(sorted(buses))
            except DurabusError as error:
                logger.debug("a hint was lost, workers will poll: %s", error)
                return
            await asyncio.sleep(PAUSE)
