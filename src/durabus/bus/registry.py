"""Keeps the store informed of this process's handlers, and this process of everybody else's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from durabus.errors import DurabusError
from durabus.model.handler import HandlerInfo
from durabus.model.pattern import matches
from durabus.store.contract import EventStore
from durabus.worker.handler import Handler

logger = logging.getLogger("durabus.bus")

REFRESH = 10.0
GONE_AFTER = 3 * REFRESH
RETRY = 2.0


class Registry:
    """Announces handlers and learns of the others', every ten seconds; one not announced for thirty is gone."""

    def __init__(self, store: EventStore, bus: str) -> None:
        self._store = store
        self._bus = bus
        self._mine: dict[str, HandlerInfo] = {}
        self._withdrawn: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._known: list[HandlerInfo] = []

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

    async def open(self) -> None:
        """Announce and look once, before the first event is claimed."""
        await self._announce()

    async def close(self) -> None:
        """Announce what changed last, then stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self._announce()

    def elsewhere(self, event_type: str) -> tuple[str, ...]:
        """The ids of the handlers for this type that only other nodes have, as of the last look."""
        if not self._known:
            return ()
        return tuple(h.handler_id for h in self._known if matches(h.pattern, event_type))

    async def look(self) -> None:
        """See which handlers other nodes have announced lately."""
        now = await self._store.now()
        known = await self._store.list_handlers(self._bus)
        self._known = [h for h in known if h.last_seen_ts > now - GONE_AFTER and h.handler_id not in self._mine]

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
            await self.look()
        except DurabusError as error:
            logger.warning("handlers of bus %r not announced, trying again in %s s: %s", self._bus, RETRY, error)
            return False
        return True
