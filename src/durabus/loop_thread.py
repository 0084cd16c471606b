"""An event loop in a thread of its own, for calls from other threads and from other event loops.

This is not anyio's blocking portal. Python waits for the thread of a portal when the program ends, so a program that
does not close its bus or its store would never end. A portal also has no new beginning after a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN = 5.0
"""Seconds after which a task that goes on is cancelled once more."""


async def cancel_until_ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end.

    A task can lose a cancellation: ``asyncio.wait_for`` of Python 3.11 drops one that comes together with the result,
    and drivers use it. Such a task goes on, so it is cancelled again.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        left = (await asyncio.wait(left, timeout=CANCEL_AGAIN))[1]


class LoopThread:
    """Runs coroutines in a daemon thread from ``start`` to ``end``.

    A call before the start, a call after the end and a call that the end cuts off raise ``error``.
    """

    def __init__(self, name: str, error: type[Exception], *, ended: str, not_started: str = "not started") -> None:
        self._name = name
        self._error, self._has_ended, self._not_started = error, ended, not_started
        self.process: int | None = None
        """The id of the process that has the thread; a forked child does not have it."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the thread. A forked child calls this: another thread of its parent may have held the lock."""
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: Future[None] | None = None
        self._ended = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the thread."""
        if self._loop is None:
            raise self._error(self._not_started)
        return self._loop

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def start(self) -> None:
        """Start the thread. A repeat does nothing."""
        with self._gate:
            if self._ended:
                raise self._error(self._has_ended)
            if self._thread is None:
                self._loop, self.process = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the thread, in the caller's context."""
        with self._gate:
            if self._loop is None or self._ended:
                work.close()
                raise self._error(self._has_ended if self._ended else self._not_started)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Start a coroutine in the thread, for a caller on another event loop, and return its result."""
        running = self.submit(work)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._error(self._has_ended) from None

    def end(self, timeout: float | None = None) -> None:
        """Take no further call, cancel what is left, and wait for the end of the thread. It may be called twice.

        It does not wait for functions in the loop's default executor, because nothing can stop them.
        """
        self._stop()
        if self._thread is not None:
            self._thread.join(timeout)

    async def end_after(self, last: Coroutine[Any, Any, None]) -> None:
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
            self._ending.add_done_callback(lambda _done: self._stop())
        await asyncio.to_thread(self._thread.join)
        self._ending.result()

    def _stop(self) -> None:
        with self._gate:
            first, self._ended = not self._ended, True
            if first and self._loop is not None:
                # This runs after all calls taken before: none of them can stay in the queue of a loop that has ended.
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            while left := asyncio.all_tasks(loop):  # callers that wait for a task must learn that it ended
                loop.run_until_complete(cancel_until_ended(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
