"""Serial buses: the size of a batch under one lock, how a lock is taken, renewed and freed, and claims without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import LockClaim
from durabus.model.event import Event
from durabus.model.result import any_offered
from durabus.store.contract import EventStore
from durabus.worker.children.run_now import ChildRunner
from durabus.worker.claim_table import ClaimTable
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.executor import BACK_FOR, HANDLERS_CHANGED, TOLD_TO_STOP
from durabus.worker.heartbeat import SAFETY, in_time
from durabus.worker.missing_handlers import MissingHandlers
from durabus.worker.poller import Poller

logger = logging.getLogger("durabus.worker")
lock_logger = logging.getLogger("durabus.locks")

QUICK = 0.05
"""Seconds that all handlers of a batch may take: other nodes and events of larger priority wait that long."""
OVERDUE = 4 * QUICK
"""Seconds after which the rest of the batch goes back to the queue."""
TRIES = 5
TRY_AGAIN = 0.02
"""Seconds before the first further try: the clock of the store may be a little late. Each pause is twice as long."""


class SerialBatch:
    """The size of the next batch. It grows while batches are quick, and shrinks at once after a slow one.

    So long handlers get their events one by one, and so does a handler that waits for other events. The events behind
    such a handler go back to the queue, because it may wait for one of them, on this node or another one.
    """

    def __init__(self, most: int) -> None:
        self.size = 1
        self._most = most
        self._began = 0.0
        self._ran: int | None = None
        """How many events of the present batch have run; None between batches."""
        self._may_grow = False

    def begin(self, count: int) -> None:
        """Begin a batch of ``count`` claimed events."""
        self._began, self._ran, self._may_grow = monotonic(), 0, count >= self.size

    @property
    def is_overdue(self) -> bool:
        """Whether the batch takes so long that its rest should go back to the queue."""
        return monotonic() - self._began > OVERDUE

    def one_ran(self) -> None:
        """Count an event of the batch that has run."""
        if self._ran is not None:
            self._ran += 1

    def wait(self) -> None:
        """Take single events from now on: a handler of the batch waits for another event."""
        self.size, self._may_grow = 1, False

    def end(self) -> None:
        """End the batch: all of its events have run or went back."""
        if self._ran is None:
            return
        took, ran, self._ran = monotonic() - self._began, self._ran, None
        if took > QUICK:
            self.size = min(self.size, max(1, int(ran * QUICK / took)))
        elif self._may_grow:
            self.size = min(2 * self.size, self._most)


async def take_lock(store: EventStore, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
    """Call ``claim_lock`` of the store. A caller that is cancelled before the reply leaves no lock behind."""
    asking = asyncio.ensure_future(store.claim_lock(key, worker_id=worker_id, token=token, lease=lease))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({asking}, timeout=lease)
        lock = asking.result() if done and not asking.cancelled() and asking.exception() is None else None
        if lock is not None:
            await free_lock(store, lock)
        raise


async def free_lock(store: EventStore, lock: LockClaim) -> None:
    """Release the lock, if this process still holds it."""
    try:
        await store.release_lock(lock)
    except LeaseLost:
        return  # another process holds it now
    except StoreError as error:
        lock_logger.warning("lock %s comes back only with its lease: %s", lock.key, error)


async def keep_lock(store: EventStore, lock: LockClaim, lease: float, sent: float) -> str:
    """Renew the lock until it is lost, and return the reason; the caller asked for it at ``sent``, by local time."""
    deadline, pause = sent + lease * SAFETY, max(sent + lease / 3 - monotonic(), 0.0)
    while True:
        await asyncio.sleep(pause)
        began = monotonic()
        # A lock past its deadline, as after a sleep of the machine, gets one more try.
        limit = deadline - began if deadline > began else lease / 10
        try:
            await in_time(store.renew_lock(lock, lease=lease), limit)
            deadline, pause = began + lease * SAFETY, lease / 3
            continue
        except LeaseLost as error:
            return error.reason
        except StoreClosedError as error:
            return str(error)
        except (StoreError, TimeoutError) as error:
            lock_logger.warning(
                "lock %s not renewed, trying again: %s", lock.key, str(error) or "no answer from the store"
            )
        except Exception:
            lock_logger.exception("lock %s not renewed, trying again", lock.key)  # whatever it was, the deadline stands
        pause = lease / 10
        if monotonic() + pause >= deadline:
            await asyncio.sleep(max(deadline - monotonic(), 0.0))
            return "could not be renewed in time"


class WithoutLock:
    """Holds events that wait for a handler that no live node has. It claims them without the lock of their bus.

    With the lock they would block every other event of the bus, also for the node that gets the handler. Without the
    lock no handler may run: such a claim only ends when the event goes back to the queue, to be claimed with the lock.
    An event with a handler that is still offered is left to the queue: the handler could begin under the claim.
    ``wake`` is called when one ends.
    """

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
        """A task for each event that the worker holds without the lock."""

    def hold(self, event: Event) -> None:
        """Claim the event, which just went back to the queue, again when it is due, and keep it waiting."""
        task = asyncio.get_running_loop().create_task(self._hold(event))
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._wake()

    def stop(self) -> None:
        """Give back the events that wait; also those whose claim is under way, once its reply comes."""
        self._stopping = True
        for claimed in list(self._held):
            if claimed.task is not None:
                claimed.task.cancel()

    async def _hold(self, event: Event) -> None:
        try:
            with self._poller.resting():  # otherwise this worker may claim the event with the lock first
                claimed = await self._claim(event)
        except StoreError as error:
            logger.warning("event %s is claimed again under the lock of its bus: %s", event.event_id, error)
            return
        if claimed is None:
            return  # another node has it, or it ended
        claimed.task, claimed.held = asyncio.current_task(), True
        self._held[claimed] = None
        try:
            if not self._stopping:
                await self._missing.prepare(claimed.claim)
                await self._missing.wait(claimed.claim)
        except asyncio.CancelledError:
            if not (self._stopping or claimed.lost):
                raise
        finally:
            self._held.pop(claimed, None)
            claimed.task, claimed.held = None, False
        if not claimed.lost:
            self._claims.by_id[claimed.ref.id] = claimed
            self._claims.put_back(claimed, TOLD_TO_STOP if self._stopping else HANDLERS_CHANGED)

    async def _claim(self, event: Event) -> ClaimedEvent | None:
        await asyncio.sleep(BACK_FOR)
        for attempt in range(TRIES):
            if self._stopping or any_offered((await self._store.read_results([event.id]))[0]):
                return None
            sent = monotonic()
            request = self._runner.request_for(event.event_id, with_lock=False)
            for claim in await self._store.claim_next_events(request):
                return ClaimedEvent(claim, self._claims.deadline(sent))
            await asyncio.sleep(TRY_AGAIN * 2**attempt)
        return None
