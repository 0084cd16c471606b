"""The shutdown of a bus: its parts end one after another, each within a bound, also if the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from durabus.bus.finder import Finder
from durabus.bus.history import HistoryLimit, leave
from durabus.bus.options import BusOptions
from durabus.bus.publisher import Publisher
from durabus.errors import EventBusShutdownError
from durabus.schedules.scheduler import Scheduler
from durabus.store.contract import EventStore
from durabus.worker.heartbeat import in_time
from durabus.worker.registry import Registry
from durabus.worker.worker import Worker

logger = logging.getLogger("durabus.bus")

T = TypeVar("T")

GOODBYE = 2.0
"""Seconds that a shutdown waits for each call of the store that notes it."""
AWAY_CLOSE = 0.5
"""Seconds that a shutdown waits for the close of a store whose server does not reply."""


class Shutdown:
    """Ends the parts of one bus."""

    def __init__(
        self,
        store: EventStore,
        options: BusOptions,
        *,
        publisher: Publisher,
        finder: Finder,
        registry: Registry,
        history: HistoryLimit,
    ) -> None:
        self._store = store
        self._bus = options.name
        self._publisher = publisher
        self._finder = finder
        self._registry = registry
        self._history = history
        self._archive_after = options.archive_after
        self._closing: asyncio.Future[None] | None = None
        self.store_is_away = False
        """Whether the shutdown could not reach the store."""

    async def run(self, worker: Worker | None, scheduler: Scheduler | None, limit: float) -> None:
        """Store what was emitted, stop the worker within ``limit`` seconds, then end the other parts."""
        await self._publisher.flush(limit)
        if worker is not None:
            if scheduler is not None:
                with worker.resting():  # it stops after the scheduler, and claims nothing meanwhile
                    await scheduler.stop(limit)
            await worker.stop(limit)
            self.store_is_away = worker.store_is_away
        ending = self._publisher.give_up_sending()
        ending |= self._publisher.close(
            EventBusShutdownError(f"bus {self._bus!r} was shut down before this event ended")
        )
        ending |= self._finder.close()
        if ending:
            await asyncio.wait(ending, timeout=AWAY_CLOSE)
        served = await self._in_time(self._registry.close(tell=not self.store_is_away), "its end was not announced")
        if not self.store_is_away:
            await self._in_time(self._history.close(), "its history was not trimmed", within=max(GOODBYE, limit))
        if served and not self.store_is_away:
            await self._in_time(
                leave(self._store, self._bus, archive_after=self._archive_after), "it was not marked as stopped"
            )
        self._history.give_up()

    async def close_store(self) -> None:
        """Close the store. If its server does not reply, the close continues in the background."""
        self._closing = asyncio.ensure_future(self._store.close())
        await asyncio.wait({self._closing}, timeout=AWAY_CLOSE if self.store_is_away else None)
        if self._closing.done():
            self._closing.result()
        else:
            logger.warning("the store is away: its connections are closed in the background")

    async def _in_time(
        self, call: Coroutine[Any, Any, T], what_is_missing: str, *, within: float = GOODBYE
    ) -> T | None:
        """Return the reply to a call. An idle bus learns here, with its first call, that its store is away."""
        try:
            return await in_time(call, within)
        except TimeoutError:
            logger.warning("the store is away: bus %r is shut down, but %s", self._bus, what_is_missing)
            self.store_is_away = True
            return None
