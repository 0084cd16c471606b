"""Keeps claims alive from a thread of its own, which a busy event loop cannot starve."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreError
from durabus.model.claim import ClaimRef
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.worker")

SAFETY = 0.9
"""The part of a lease that a worker uses: the rest is for the time that requests and clocks take."""


class Held:
    """A claim in this process. ``deadline`` is local, and counted from before the request was sent."""

    __slots__ = ("deadline", "ref")

    def __init__(self, ref: ClaimRef, deadline: float) -> None:
        self.ref = ref
        self.deadline = deadline


class Heartbeat:
    """Renews every third of a lease. A claim that is lost, or not renewed before its deadline, is reported."""

    def __init__(
        self,
        store: EventStore,
        *,
        lease: float,
        held: Callable[[], list[Held]],
        lost: Callable[[Held, str], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._held = held
        self._lost = lost
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="durabus-heartbeat", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            # A tenth of the lease as the tick: a failed renewal gets several more tries before the deadline.
            while not self._stop.wait(self._lease / 10):
                try:
                    runner.run(self._beat())
                except Exception:
                    logger.exception("heartbeat failed, will try again")

    async def _beat(self) -> None:
        now = monotonic()
        due = [held for held in self._held() if held.deadline - now < self._lease * (SAFETY - 1 / 3)]
        if not due:
            return
        try:
            answers = await self._store.renew_event_claims([held.ref for held in due], lease=self._lease)
        except StoreError as error:
            logger.warning("cannot renew %s claims, will try again: %s", len(due), error)
            answers = []
        for held, answer in zip(due, answers, strict=False):
            if isinstance(answer, LeaseLost):
                self._lost(held, answer.reason)
            else:
                held.deadline = now + self._lease * SAFETY
        for held in due:
            if held.deadline <= monotonic():
                self._lost(held, "could not be renewed in time")
