"""Keeps the store informed of this process's handlers, and this process of everybody else's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from durabus.clock import monotonic
from durabus.errors import DurabusError
from durabus.model.handler import HandlerInfo
from durabus.model.pattern import matches
from durabus.store.contract import EventStore
from durabus.worker.handler import Handler

logger = logging.getLogger("durabus.bus")

REFRESH = 60.0
GONE_AFTER = 3 * REFRESH
CACHE = 2.0
RETRY = 2.0


class Registry:
    """Announces handlers, again every minute; a handler not announced for three is gone."""

    def __init__(self, store: EventStore, bus: str) -> None:
        self._store = store
        self._bus = bus
        self._mine: dict[str, HandlerInfo] = {}
        self._withdrawn: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._known: list[HandlerInfo] = []
        self._known_until = 0.0

    def announce(self, handlers: Iterable[Handler]) -> None:
        """Tell the store soon."""
        self._mine = {h.id: HandlerInfo(handler_id=h.id, pattern=h.pattern) for h in handlers}
        self._changed.set()

    def withdraw(self, handler_id: str) -> None:
        """Tell the store soon that this handler is gone."""
        self._mine.pop(handler_id, None)
        self._withdrawn.add(handler_id)
        self._changed.set()

    def start(self) -> None:
        """Begin to announce."""
        if self._task is None:
            self._changed.set()
            self._task = asyncio.get_running_loop().create_task(self._keep_announcing())

    async def close(self) -> None:
        """Announce what changed last, then stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self._announce()

    async def has_handler_for(self, event_type: str) -> bool:
        """Whether another node has lately announced a handler for this type. Only a yes is remembered for a while."""
        if monotonic() < self._known_until and self._matches(event_type):
            return True
        now = await self._store.now()
        known = await self._store.list_handlers(self._bus)
        self._known = [h for h in known if h.last_seen_ts > now - GONE_AFTER and h.handler_id not in self._mine]
        self._known_until = monotonic() + CACHE
        return self._matches(event_type)

    def _matches(self, event_type: str) -> bool:
        return any(matches(handler.pattern, event_type) for handler in self._known)

    async def _keep_announcing(self) -> None:
        while True:
            self._changed.clear()
            announced = await self._announce()
            try:
                async with asyncio.timeout(REFRESH if announced else RETRY):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _announce(self) -> bool:
        try:
            if self._mine:
                await self._store.register_handlers(self._bus, list(self._mine.values()))
            for handler_id in list(self._withdrawn):
                await self._store.unregister_handler(self._bus, handler_id)
                self._withdrawn.discard(handler_id)
        except DurabusError as error:
            logger.warning("handlers of bus %r not announced, trying again in %s s: %s", self._bus, RETRY, error)
            return False
        return True
