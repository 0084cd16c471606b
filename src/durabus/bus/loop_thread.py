"""The thread of a ``SyncEventBus``: it runs the event loop of its ``EventBus``, and ends with the program."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from durabus.errors import ConfigurationError, EventBusShutdownError

T = TypeVar("T")

logger = logging.getLogger("durabus.bus")

JOIN_WITHIN = 5.0
"""Seconds to wait for the end of the thread. A task that refuses to end is left behind: the thread is a daemon."""

PATIENCE = 2.0
"""Seconds that an event loop may be blocked when the program ends, before its thread is left behind."""

ENDED = "this SyncEventBus is shut down; make a new one"


class LoopThread:
    """Runs coroutines in a daemon thread until ``end``. It calls ``last`` when the program ends."""

    def __init__(self, name: str, last: Callable[[], None]) -> None:
        self.process = os.getpid()
        self._last = last
        self._loop = asyncio.new_event_loop()
        self._gate = threading.Lock()
        self._ended = False
        self._stop = asyncio.Event()
        self._patience: float | None = None
        self._blocked = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine in the thread, in the caller's context."""
        if threading.get_ident() == self._thread.ident:
            raise ConfigurationError(
                "an async handler called a method of its SyncEventBus, which would block the event loop that this "
                "handler runs on: use ctx.emit there, or make the handler a plain function"
            )
        with self._gate:
            if self._ended:
                raise EventBusShutdownError(ENDED)
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Start a coroutine in the thread and return its result."""
        future = self.submit(work)
        try:
            while self._patience and not wait([future], self._patience).done:
                self._check_moving()
            return future.result()
        except CancelledError:
            if self._ended:
                raise EventBusShutdownError(ENDED) from None
            raise

    def end(self) -> None:
        """Take no further call, cancel what is left and end the thread. It may be called twice."""
        with self._gate:
            first, self._ended = not self._ended, True
            if first:
                # This runs after all calls taken before: none of them can stay in the queue of a loop that has ended.
                self._loop.call_soon_threadsafe(self._stop.set)
        _running.discard(self)
        self._thread.join(0 if self._blocked else JOIN_WITHIN)

    def end_with_program(self) -> None:
        """Call ``last``: the program ends without a ``shutdown()``."""
        self._patience = PATIENCE
        try:
            self._last()
        except Exception as error:
            # The program has ended. Its events come back when their leases expire.
            logger.debug("a SyncEventBus did not shut down cleanly at the program's end: %s", error, exc_info=True)

    def _check_moving(self) -> None:
        """Raise if the event loop is blocked: the thread would keep the program alive."""
        moved = threading.Event()
        self._loop.call_soon_threadsafe(moved.set)
        if not moved.wait(self._patience):
            self._blocked = True
            logger.warning(
                "the program ends while an async handler blocks the event loop of its SyncEventBus: its event comes "
                "back when its lease is over. Make the handler a plain function, or await what takes time"
            )
            raise EventBusShutdownError("an async handler blocks the event loop")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stop.wait())


_running: set[LoopThread] = set()


def _end_all() -> None:
    """End all threads with the program. A forked child leaves its parent's threads to the parent."""
    for thread in list(_running):
        if thread.process == os.getpid():
            thread.end_with_program()


# threading._register_atexit would be too early: threads and executors of the program may publish until Python has
# joined them. Later is too late: once the interpreter finalizes, daemon threads stop, and a wait for one of them hangs.
atexit.register(_end_all)
