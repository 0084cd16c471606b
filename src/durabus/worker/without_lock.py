"""Events of a serial bus that wait for a handler that no live node has. The worker claims them without the lock.

With the lock they would block every other event of the bus, also for the node that gets the handler. Without the lock
no handler may run: such a claim only ends when the event goes back to the queue, to be claimed with the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.store.contract import EventStore
from durabus.worker.children.run_now import ChildRunner
from durabus.worker.claim_table import ClaimTable
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.executor import BACK_FOR, HANDLERS_CHANGED, TOLD_TO_STOP
from durabus.worker.poller import Poller
from durabus.worker.remote_handlers import MissingHandlers

logger = logging.getLogger("durabus.worker")

TRIES = 5
TRY_AGAIN = 0.02
"""Seconds before the first further try: the clock of the store may be a little late. Each pause is twice as long."""


class WithoutLock:
    """Holds claims without the lock; ``wake`` is called when one ends."""

    def __init__(
        self,
        store: EventStore,
        missing: MissingHandlers,
        claims: ClaimTable,
        poller: Poller,
        runner: ChildRunner,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._missing = missing
        self._claims = claims
        self._held = claims.held_without_lock
        self._poller = poller
        self._runner = runner
        self._wake = wake
        self._stopping = False
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each event."""

    def hold(self, event_id: str) -> None:
        """Claim the event, which just went back to the queue, again when it is due, and keep it waiting."""
        task = asyncio.get_running_loop().create_task(self._hold(event_id))
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._wake()

    def stop(self) -> None:
        """Give back the events that wait; also those whose claim is under way, once its answer comes."""
        self._stopping = True
        for claimed in list(self._held):
            if claimed.task is not None:
                claimed.task.cancel()

    async def _hold(self, event_id: str) -> None:
        try:
            with self._poller.resting():  # otherwise this worker may claim the event with the lock first
                claimed = await self._claim(event_id)
        except StoreError as error:
            logger.warning("event %s is claimed again under the lock of its bus: %s", event_id, error)
            return
        if claimed is None:
            return  # another node has it, or it ended
        claimed.task, claimed.held = asyncio.current_task(), True
        self._held.add(claimed)
        try:
            if not self._stopping:
                await self._missing.prepare(claimed.claim)
                await self._missing.wait(claimed.claim)
        except asyncio.CancelledError:
            if not (self._stopping or claimed.lost):
                raise
        finally:
            self._held.discard(claimed)
            claimed.task, claimed.held = None, False
        if not claimed.lost:
            self._claims.by_id[claimed.ref.id] = claimed
            self._claims.put_back(claimed, TOLD_TO_STOP if self._stopping else HANDLERS_CHANGED)

    async def _claim(self, event_id: str) -> ClaimedEvent | None:
        await asyncio.sleep(BACK_FOR)
        for attempt in range(TRIES):
            if self._stopping:
                return None
            sent = monotonic()
            request = self._runner.request_for(event_id, with_lock=False)
            for claim in await self._store.claim_next_events(request):
                return ClaimedEvent(claim, self._claims.deadline(sent))
            await asyncio.sleep(TRY_AGAIN * 2**attempt)
        return None
