"""Handles and ``emit`` for threads: they block the calling thread, and the event loop of the bus does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from durabus.bus.handle import Handle
from durabus.errors import EventBusShutdownError
from durabus.model.event import Event
from durabus.model.limits import Duration, seconds
from durabus.model.result import HandlerResult

T = TypeVar("T")


class WaitInLoop(Protocol):
    """Runs a method of a handle on the event loop of its bus, and returns its value in the calling thread."""

    def __call__(self, question: Callable[[], Coroutine[Any, Any, T]], limit: float | None = None) -> T:
        """Raises ``TimeoutError`` after ``limit`` seconds."""
        ...


class SyncHandle:
    """What ``emit`` returns in a thread. After a shutdown of a ``SyncEventBus`` it returns what became known before."""

    def __init__(self, wait: WaitInLoop, handle: Handle) -> None:
        self._wait = wait
        self._handle = handle
        self.event_id = handle.event_id

    def stored(self) -> Event:
        """Wait until the store has accepted the event durably."""
        return self._wait(self._handle.stored)

    def completed(self, *, timeout: Duration | None = None) -> Event:
        """Wait until the event has ended, at most ``timeout`` seconds.

        Raises ``TimeoutError`` after that, and ``EventBusShutdownError`` if the bus was shut down before.
        """
        return self._within(timeout, self._handle.completed)

    def results(self, *, timeout: Duration | None = None) -> tuple[HandlerResult, ...]:
        """Wait for the end, as ``completed`` does, and return the stored results."""
        return self._within(timeout, self._handle.results)

    def result(self, *, timeout: Duration | None = None) -> Any:
        """Wait for the end, as ``completed`` does, and return the first value of a handler."""
        return self._within(timeout, self._handle.result)

    def _within(self, timeout: Duration | None, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if timeout is None:
            return self._wait(question)
        limit = seconds(timeout, "timeout")
        try:
            return self._wait(question, limit)
        except TimeoutError as error:
            raise TimeoutError(
                f"event {self.event_id} has not ended within {limit:g} s: wait longer, or start a worker for its bus"
            ) from error


class HandlerEmitter:
    """``ctx.emit`` of a bus: an async handler gets a ``Handle``, a plain one, which runs in a thread, a ``SyncHandle``.

    ``loop`` returns the event loop of the bus.
    """

    def __init__(self, emit: Callable[..., Handle], loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._emit = emit
        self._loop = loop

    def __call__(self, *args: Any, **options: Any) -> Handle | SyncHandle:
        """Emit a child of the event that the calling handler handles."""

        async def emit() -> Handle:
            return self._emit(*args, **options)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return SyncHandle(self._wait, self._wait(emit))
        return self._emit(*args, **options)

    def _wait(self, question: Callable[[], Coroutine[Any, Any, T]], limit: float | None = None) -> T:
        async def ask() -> T:
            async with asyncio.timeout(limit):
                return await question()

        loop = self._loop()
        if loop is None or loop.is_closed():
            raise EventBusShutdownError("the bus is shut down, and its handler still runs in a thread")
        # The task runs in the context of this thread, so the event is a child of the one that is handled.
        return asyncio.run_coroutine_threadsafe(ask(), loop).result()
