"""The lock manager holds a lock of the store for as long as a block of code runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from durabus.clock import monotonic
from durabus.errors import ConfigurationError, LeaseLost, LockHeld
from durabus.model.claim import DEFAULT_LEASE, LockClaim, default_worker_id, new_token
from durabus.model.limits import Duration, seconds
from durabus.store.contract import EventStore
from durabus.worker.heartbeat import SAFETY
from durabus.worker.process_watch import ProcessWatch
from durabus.worker.serial import free_lock, keep_lock, take_lock

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5


class LockManager:
    """Leased and fenced locks on names of your own, shared by all processes of a store.

    A process that dies or hangs loses its lock after ``lease`` seconds, and the next holder has a larger ``fence``:
    pass it to systems that only one process may write to. A process that also serves a bus of the same store object
    loses its locks together with its events. Names under ``event:`` and ``handler:`` belong to the bus.
    """

    def __init__(self, store: EventStore, *, lease: Duration = DEFAULT_LEASE, worker_id: str | None = None) -> None:
        self._store = store
        self._lease = seconds(lease, "lease", allow_zero=False)
        if self._lease <= store.features.minimum_lease:
            raise ConfigurationError(
                f"lease={lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
            )
        self._worker_id = worker_id or default_worker_id()
        self._watch = ProcessWatch.of(store)

    @asynccontextmanager
    async def hold(self, key: str, *, wait: Duration | None = None) -> AsyncIterator[LockClaim]:
        """Hold ``key`` inside the block. The manager renews the lock meanwhile, and frees it at the end.

        It waits until the lock is free, at most ``wait`` seconds, then raises ``LockHeld``. If the lock is lost, it
        cancels what runs in the block and raises ``LeaseLost``.
        """
        with self._watch.held_too():
            async with self._held(key, None if wait is None else seconds(wait, "wait")) as lock:
                yield lock

    @asynccontextmanager
    async def _held(self, key: str, wait: float | None) -> AsyncIterator[LockClaim]:
        lock, sent = await self._take(key, wait)
        task = cast("asyncio.Task[object]", asyncio.current_task())
        before, lost, inside = task.cancelling(), list[str](), True

        def stop(keeping: asyncio.Task[str]) -> None:
            if inside and not keeping.cancelled():
                lost.append(keeping.result())
                task.cancel()

        keeping = asyncio.create_task(keep_lock(self._store, lock, self._lease, sent))
        keeping.add_done_callback(stop)
        try:
            yield lock
        except BaseException as error:
            # Undo our own cancellation, whatever the block did with it. If one is left, other code cancelled the task.
            ours = bool(lost) and task.uncancel() <= before
            if ours and isinstance(error, asyncio.CancelledError):
                raise LeaseLost(key, lost[0]) from None
            raise
        else:
            if lost:  # the block ignored the cancellation and ended
                task.uncancel()
                raise LeaseLost(key, lost[0])
        finally:
            inside = False
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await free_lock(self._store, lock)

    async def _take(self, key: str, wait: float | None) -> tuple[LockClaim, float]:
        token, began, pause = new_token(self._watch.incarnation), monotonic(), FIRST_PAUSE
        while True:
            sent = monotonic()
            lock = await take_lock(self._store, key, worker_id=self._worker_id, token=token, lease=self._lease)
            if lock is not None:
                if monotonic() < sent + self._lease * SAFETY:
                    return lock, sent
                # The reply took so long that another process may have the lock by now: nothing may begin under it.
                await free_lock(self._store, lock)
                token = new_token(self._watch.incarnation)
            left = pause if wait is None else wait - (monotonic() - began)
            if left <= 0:
                raise LockHeld(key, wait or 0.0)
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), left))
            pause = min(2 * pause, LONGEST_PAUSE)
