"""Runs what the holder of a serial bus's lock waits for, on nodes that have the handlers and not the lock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from durabus.errors import StoreClosedError, StoreError
from durabus.model.claim import ClaimRequest
from durabus.store.contract import EventStore
from durabus.worker.awaited import awaited_events, is_awaited, until_withdrawn
from durabus.worker.slots import EventLock, Running

logger = logging.getLogger("durabus.worker")


class Runner(Protocol):
    """What it needs of a worker."""

    def has_handlers(self, event_type: str) -> bool:
        """Whether events of this type have handlers here."""
        ...

    def request_for(self, event_id: str, *, with_lock: bool) -> ClaimRequest:
        """A claim on one event."""
        ...

    async def run_at_once(
        self, request: ClaimRequest, under: tuple[EventLock, ...], is_wanted: Callable[[], Awaitable[bool]]
    ) -> Running | None:
        """Claim it and run it before all others."""
        ...

    def holds(self, running: Running) -> bool:
        """Whether the claim is neither lost nor settled."""
        ...

    async def take_back(self, running: Running) -> None:
        """Put it back into the queue if it has not ended."""
        ...


class AwaitedRuns:
    """Of one worker, on a bus with ``lock``."""

    def __init__(self, runner: Runner, store: EventStore, bus: str, *, lease: float, lock: EventLock | None) -> None:
        self._runner = runner
        self._store = store
        self._bus = bus
        self._lease = lease
        self._lock = lock
        self.tasks: set[asyncio.Task[None]] = set()
        """They watch what runs."""

    async def look(self) -> None:
        """There may be work behind the lock, and part of it what the lock's own holder waits for, here or elsewhere."""
        try:
            await self._run_all()
        except StoreClosedError:
            raise
        except StoreError as error:
            logger.warning("cannot look for awaited events, trying again: %s", error)
        except Exception:
            logger.exception("worker of bus %r cannot look for awaited events, trying again", self._bus)

    async def _run_all(self) -> None:
        if not self._store.features.claims_by_event_id or self._lock is None:
            return
        for event_id in await awaited_events(self._store, self._bus):
            event = await self._store.get_event(event_id)
            if event is None or not self._runner.has_handlers(event.type):
                continue
            running = await self._runner.run_at_once(
                self._runner.request_for(event_id, with_lock=False),
                (self._lock,),
                partial(is_awaited, self._store, self._bus, event_id),
            )
            if running is not None:
                task = asyncio.create_task(self._watch(running))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _watch(self, running: Running) -> None:
        """Nobody may wait for it any more, and then its parent's lock is no excuse: stop."""
        withdrawn = asyncio.create_task(
            until_withdrawn(self._store, self._bus, running.claim.event.event_id, self._lease)
        )
        try:
            while not withdrawn.done() and self._runner.holds(running):
                await asyncio.wait({withdrawn}, timeout=self._lease / 10)
            if withdrawn.done():
                await self._runner.take_back(running)
        finally:
            withdrawn.cancel()
