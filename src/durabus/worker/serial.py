"""Serial buses: how many events a worker claims under one lock, and how a lock is taken, renewed and freed."""

from __future__ import annotations

import asyncio
import logging

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import LockClaim
from durabus.store.contract import EventStore
from durabus.worker.heartbeat import SAFETY, in_time

QUICK = 0.05
"""Seconds that all handlers of a batch may take: other nodes and events of larger priority wait that long."""
OVERDUE = 4 * QUICK
"""Seconds after which the rest of the batch goes back to the queue."""


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


logger = logging.getLogger("durabus.locks")


async def take_lock(store: EventStore, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
    """Call ``claim_lock`` of the store. A caller that is cancelled before the answer leaves no lock behind."""
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
        logger.warning("lock %s comes back only with its lease: %s", lock.key, error)


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
            logger.warning("lock %s not renewed, trying again: %s", lock.key, str(error) or "no answer from the store")
        except Exception:
            logger.exception("lock %s not renewed, trying again", lock.key)  # whatever it was, the deadline stands
        pause = lease / 10
        if monotonic() + pause >= deadline:
            await asyncio.sleep(max(deadline - monotonic(), 0.0))
            return "could not be renewed in time"
