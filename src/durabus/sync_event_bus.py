"""The bus for scripts without an event loop: the same verbs, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from durabus.bus.event_bus import EventBus
from durabus.bus.handle import Handle
from durabus.errors import EventBusShutdownError
from durabus.model.event import Event
from durabus.model.pattern import ANY
from durabus.model.result import HandlerResult
from durabus.worker.handler import HandlerFunction

T = TypeVar("T")


class SyncHandle:
    """What ``SyncEventBus.emit`` returns. After a shutdown it still answers what became known before."""

    def __init__(self, bus: SyncEventBus, handle: Handle) -> None:
        self._bus = bus
        self._handle = handle
        self.event_id = handle.event_id

    def stored(self) -> Event:
        """Wait until the store has accepted the event durably."""
        return self._bus.wait_for(self._handle.stored)

    def completed(self) -> Event:
        """Wait until the event has ended. Raises ``EventBusShutdownError`` if the bus was shut down before."""
        return self._bus.wait_for(self._handle.completed)

    def results(self) -> tuple[HandlerResult, ...]:
        """Wait for the end; the results that carry news."""
        return self._bus.wait_for(self._handle.results)

    def result(self) -> Any:
        """Wait for the end; the first value a handler returned."""
        return self._bus.wait_for(self._handle.result)


class SyncEventBus:
    """An ``EventBus`` in a background thread. Plain-function handlers run in worker threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._ending = threading.Lock()
        self._runner: AbstractContextManager[BlockingPortal] = start_blocking_portal("asyncio")
        self._portal: BlockingPortal | None = self._runner.__enter__()
        try:
            self._bus = self._portal.call(lambda: EventBus(*args, **options))
        except BaseException:
            self._end()
            raise

    @property
    def bus(self) -> EventBus:
        """The bus behind, for its metrics and options."""
        return self._bus

    def start(self) -> Self:
        """As ``EventBus.start``."""
        self._running().call(self._bus.start)
        return self

    def subscribe(self, *args: Any, **options: Any) -> str:
        """As ``EventBus.subscribe``."""
        return self._running().call(lambda: self._bus.subscribe(*args, **options))

    def on(self, pattern: Any = ANY, **options: Any) -> Any:
        """As ``EventBus.on``."""

        def decorate(handler: HandlerFunction) -> HandlerFunction:
            self.subscribe(ANY if handler is pattern else pattern, handler, **options)
            return handler

        return decorate if isinstance(pattern, str | type) else decorate(pattern)

    def unsubscribe(self, subscription_id: str) -> bool:
        """As ``EventBus.unsubscribe``."""
        return self._running().call(self._bus.unsubscribe, subscription_id)

    def off(self, pattern: Any = ANY, handler: HandlerFunction | str | None = None) -> int:
        """As ``EventBus.off``."""
        return self._running().call(self._bus.off, pattern, handler)

    def find(self, event_type: Any = ANY, **options: Any) -> Event | None:
        """As ``EventBus.find``."""
        return self._running().call(lambda: self._bus.find(event_type, **options))

    def publish(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """As ``EventBus.publish``: returns when dispatch is over."""
        return self._running().call(lambda: self._bus.publish(event_type, payload, metadata, **options))

    def emit(self, *args: Any, **options: Any) -> SyncHandle:
        """As ``EventBus.emit``: returns at once."""
        portal = self._running()
        # In a list, because the portal would await a bare handle to its end.
        (handle,) = portal.call(lambda: [self._bus.emit(*args, **options)])
        return SyncHandle(self, handle)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """As ``EventBus.wait_until_idle``."""
        return self._running().call(self._bus.wait_until_idle, timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """As ``EventBus.shutdown``; ends the background thread."""
        with self._ending:
            if self._portal is not None:
                try:
                    self._portal.call(self._bus.shutdown, timeout)
                finally:
                    self._end()

    def wait_for(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a question that a handle takes on the bus's own event loop, as ``handle.completed``."""
        portal = self._portal
        if portal is not None:
            try:
                answer: T = portal.call(question)
            except RuntimeError:
                if self._portal is not None:
                    raise  # not because the loop has ended meanwhile
            else:
                return answer
        return _without_waiting(question())

    def __enter__(self) -> Self:
        """Start."""
        try:
            return self.start()
        except BaseException:
            self.shutdown()
            raise

    def __exit__(self, *exc_info: object) -> None:
        """Shut down."""
        self.shutdown()

    def _running(self) -> BlockingPortal:
        if self._portal is None:
            raise EventBusShutdownError("this SyncEventBus is shut down; make a new one")
        return self._portal

    def _end(self) -> None:
        self._portal = None
        self._runner.__exit__(None, None, None)


def _without_waiting(question: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that has it already, as handles do after a shutdown."""
    try:
        question.send(None)
    except StopIteration as answer:
        known: T = answer.value
        return known
    question.close()
    raise EventBusShutdownError("this SyncEventBus is shut down, and the event's end is not known here")
