"""The shutdown of a bus: its parts end one after another, each within a bound, also if the store is away."""

from __future__ import annotations

import asyncio
import logging

from durabus.bus.finder import Finder
from durabus.bus.history import HistoryLimit, leave
from durabus.bus.options import BusOptions
from durabus.bus.publisher import Publisher
from durabus.errors import EventBusShutdownError
from durabus.store.contract import EventStore
from durabus.worker.heartbeat import in_time
from durabus.worker.registry import Registry
from durabus.worker.worker import Worker

logger = logging.getLogger("durabus.bus")

GOODBYE = 2.0
"""Seconds that a shutdown waits for the store to note it."""
AWAY_CLOSE = 0.5
"""Seconds that a shutdown waits for the close of a store whose server does not answer."""


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

    async def run(self, worker: Worker | None, limit: float) -> None:
        """Store what was emitted, stop the worker within ``limit`` seconds, then end the other parts."""
        await self._publisher.flush(limit)
        if worker is not None:
            await worker.stop(limit)
            self.store_is_away = worker.store_is_away
        self._publisher.close(EventBusShutdownError(f"bus {self._bus!r} was shut down before this event ended"))
        self._finder.close()
        served = await self._close_registry()
        if not self.store_is_away:
            await self._history.close()
            if served:
                await leave(self._store, self._bus, archive_after=self._archive_after)

    async def close_store(self) -> None:
        """Close the store. If its server does not answer, the close continues in the background."""
        self._closing = asyncio.ensure_future(self._store.close())
        await asyncio.wait({self._closing}, timeout=AWAY_CLOSE if self.store_is_away else None)
        if self._closing.done():
            self._closing.result()
        else:
            logger.warning("the store is away: its connections are closed in the background")

    async def _close_registry(self) -> bool:
        """Announce the end of this node. An idle bus learns here, with its first call, that its store is away."""
        try:
            return await in_time(self._registry.close(tell=not self.store_is_away), GOODBYE)
        except TimeoutError:
            logger.warning("the store is away: the shutdown of a node of bus %r was not announced", self._bus)
            self.store_is_away = True
            return False
