"""Events of a serial bus that wait in place for a handler that no live node has, without the lock of the bus.

Under the lock they would keep every other event of the bus from running, and also from the node that gets the handler.
Without it no handler may run: such a claim only ends by giving the event back, to be claimed under the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.model.claim import ClaimRequest
from durabus.store.contract import EventStore
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.heartbeat import SAFETY
from durabus.worker.slots import BACK_FOR, HANDLERS_CHANGED, TOLD_TO_STOP, ClaimedEvent

logger = logging.getLogger("durabus.worker")

TRIES = 5
TRY_AGAIN = 0.02
"""The clock of the store may be a little late. Each further pause is twice as long."""


class WithoutLock:
    """``request`` makes a claim on one event without the lock; ``put_back`` settles such a claim.

    ``resting`` keeps this worker from claiming it under the lock first.
    """

    def __init__(
        self,
        store: EventStore,
        dispatcher: Dispatcher,
        held: set[ClaimedEvent],
        *,
        lease: float,
        resting: Callable[[], AbstractContextManager[None]],
        request: Callable[[str], ClaimRequest],
        put_back: Callable[[ClaimedEvent, str], None],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._held = held
        self._lease = lease
        self._resting = resting
        self._request = request
        self._put_back = put_back
        self._wake = wake
        self._stopping = False
        self.tasks: set[asyncio.Task[None]] = set()
        """``wake`` is called when one ends."""

    def hold(self, event_id: str) -> None:
        """The event just went back: claim it again when it is due, and let it wait."""
        task = asyncio.get_running_loop().create_task(self._hold(event_id))
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._wake()

    def lose(self, running: ClaimedEvent) -> None:
        """Another claim may hold the event."""
        running.lost = True
        if running.task is not None:
            running.task.cancel()

    def stop(self) -> None:
        """Give back what waits; a claim that is under way, when its answer comes."""
        self._stopping = True
        for running in list(self._held):
            if running.task is not None:
                running.task.cancel()

    async def _hold(self, event_id: str) -> None:
        try:
            with self._resting():
                running = await self._claim(event_id)
        except StoreError as error:
            logger.warning("event %s is claimed again under the lock of its bus: %s", event_id, error)
            return
        if running is None:
            return  # another node has it, or it ended
        running.task, running.held = asyncio.current_task(), True
        self._held.add(running)
        try:
            if not self._stopping:
                await self._dispatcher.prepare(running.claim)
                await self._dispatcher.wait_for_others(running.claim)
        except asyncio.CancelledError:
            if not (self._stopping or running.lost):
                raise
        finally:
            self._held.discard(running)
            running.task, running.held = None, False
        if not running.lost:
            self._put_back(running, TOLD_TO_STOP if self._stopping else HANDLERS_CHANGED)

    async def _claim(self, event_id: str) -> ClaimedEvent | None:
        await asyncio.sleep(BACK_FOR)
        for attempt in range(TRIES):
            if self._stopping:
                return None
            sent = monotonic()
            for claim in await self._store.claim_next_events(self._request(event_id)):
                return ClaimedEvent(claim, sent + self._lease * SAFETY)
            await asyncio.sleep(TRY_AGAIN * 2**attempt)
        return None
