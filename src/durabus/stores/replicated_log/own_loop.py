"""An event loop in its own thread. Tasks of other loops can run work there and end it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from durabus.errors import StoreClosedError, StoreUnavailableError

T = TypeVar("T")

logger = logging.getLogger("durabus.replicated_log")

CLOSED = "this store is closed: open a new one"
NOT_OPEN = "this store is not open yet: open() comes first"


class OwnLoop:
    """An event loop that runs in its own thread from ``start`` to ``end``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._gate = threading.Lock()
        self._ending: Future[None] | None = None
        self._ended = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop. Raises ``StoreClosedError`` before the start."""
        if self._loop is None:
            raise StoreClosedError(NOT_OPEN)
        return self._loop

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and return its result. Raises ``StoreClosedError`` if the loop ends first."""
        with self._gate:
            if self._loop is None or self._ended:
                work.close()
                raise StoreClosedError(CLOSED if self._ended else NOT_OPEN)
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StoreClosedError(CLOSED) from None

    async def end(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last``, then end the thread, even if the caller is cancelled. A repeat waits for the same end."""
        with self._gate:
            first = self._ending is None and self._thread is not None
            if first:
                self._ending = asyncio.run_coroutine_threadsafe(last, self.loop)
            else:
                last.close()
        if self._thread is None or self._ending is None:
            return
        if first:
            self._ending.add_done_callback(self._stop)
        await asyncio.to_thread(self._thread.join)
        self._ending.result()

    def _stop(self, _done: Future[None]) -> None:
        with self._gate:
            self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            while left := asyncio.all_tasks(loop):  # callers that wait for a task must learn that it ended
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left))
        finally:
            loop.close()


class OwnTasks:
    """The tasks of an ``OwnLoop``."""

    def __init__(self, own: OwnLoop, failed: Callable[[StoreUnavailableError], None]) -> None:
        self._own = own
        self._failed = failed
        """Called when a task failed: the store cannot go on without it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the loop."""
        task = self._own.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel_all(self) -> None:
        """Cancel the tasks and wait for their end."""
        while self._tasks:  # a task that ends may have begun another
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the store failed", exc_info=error)
            self._failed(StoreUnavailableError(f"the store's own work failed: {type(error).__name__}: {error}"))
