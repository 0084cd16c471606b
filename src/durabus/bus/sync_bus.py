"""The bus for scripts without an event loop: the same verbs, blocking."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Self, TypeVar

from durabus.bus.event_bus import EventBus
from durabus.bus.handle import Handle
from durabus.bus.sync_handle import SyncHandle
from durabus.bus.sync_schedules import SyncSchedules
from durabus.errors import ConfigurationError, EventBusShutdownError, StoreClosedError
from durabus.loop_thread import LoopThread
from durabus.model.event import Event
from durabus.model.limits import Duration
from durabus.model.pattern import ANY
from durabus.store.events import EventRef
from durabus.worker.handler import HandlerFunction

T = TypeVar("T")
F = TypeVar("F", bound=HandlerFunction)

logger = logging.getLogger("durabus.bus")

EXIT_TIMEOUT = 2.0
"""Seconds that running handlers get to finish when the program ends without a ``shutdown()``."""
JOIN_WITHIN = 5.0
"""Seconds to wait for the end of the thread. A task that refuses to end is left behind: the thread is a daemon."""
PATIENCE = 2.0
"""Seconds that an event loop may be blocked when the program ends, before its thread is left behind."""
ENDED = "this SyncEventBus is shut down; make a new one"


class BusThread(LoopThread):
    """The running thread of one ``SyncEventBus``. It calls ``last`` when the program ends without a ``shutdown()``."""

    def __init__(self, name: str, last: Callable[[], None]) -> None:
        super().__init__(name, EventBusShutdownError, ended=ENDED)
        self._last = last
        self._patience: float | None = None
        self._blocked = False
        self.start()
        _running.add(self)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the thread, in the caller's context."""
        if self.is_current:
            work.close()
            raise ConfigurationError(
                "an async handler called a method of its SyncEventBus, which would block the event loop that this "
                "handler runs on: use ctx.emit there, or make the handler a plain function"
            )
        return super().submit(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
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

    def end(self, timeout: float | None = JOIN_WITHIN) -> None:
        """End the thread. It may be called twice."""
        _running.discard(self)
        super().end(0 if self._blocked else timeout)

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
        self.loop.call_soon_threadsafe(moved.set)
        if not moved.wait(self._patience):
            self._blocked = True
            logger.warning(
                "the program ends while an async handler blocks the event loop of its SyncEventBus: its event comes "
                "back when its lease is over. Make the handler a plain function, or await what takes time"
            )
            raise EventBusShutdownError("an async handler blocks the event loop")


_running: set[BusThread] = set()


def _end_all() -> None:
    """End all threads with the program. A forked child leaves its parent's threads to the parent."""
    for thread in list(_running):
        if thread.process == os.getpid():
            thread.end_with_program()


# threading._register_atexit would be too early: threads and executors of the program may publish until Python has
# joined them. Later is too late: once the interpreter finalizes, daemon threads stop, and a wait for one of them hangs.
atexit.register(_end_all)


class SyncEventBus:
    """An ``EventBus`` in a background thread. Plain-function handlers run in worker threads.

    Any thread may call it. The background thread starts with the first call that needs it, such as ``start`` or
    ``publish``, so a module may create the bus and subscribe handlers without starting anything. It never keeps the
    program alive: a program that ends without ``shutdown()`` stores what was emitted, gives running handlers two
    seconds, and puts their events back into the queue.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._bus = EventBus(*args, **options)
        self._thread: BusThread | None = None
        self._ended = False
        self._changing = threading.Lock()
        self._ending = threading.Lock()

    @property
    def bus(self) -> EventBus:
        """The ``EventBus`` in the background thread, for its metrics and options."""
        return self._bus

    def start(self, *, serve: bool = False) -> Self:
        """As ``EventBus.start``."""
        self._running().call(self._bus.start(serve=serve))
        return self

    def subscribe(self, *args: Any, **options: Any) -> str:
        """As ``EventBus.subscribe``."""
        return self._change(lambda: self._bus.subscribe(*args, **options))

    def on(self, pattern: Any = ANY, **options: Any) -> Any:
        """As ``EventBus.on``."""

        def decorate(handler: HandlerFunction) -> HandlerFunction:
            self.subscribe(ANY if handler is pattern else pattern, handler, **options)
            return handler

        return decorate if isinstance(pattern, str | type) else decorate(pattern)

    def every(self, when: str | Duration, **options: Any) -> Callable[[F], F]:
        """As ``EventBus.every``."""

        def decorate(handler: F) -> F:
            return self._change(lambda: self._bus.every(when, **options)(handler))

        return decorate

    @property
    def schedules(self) -> SyncSchedules:
        """As ``EventBus.schedules``."""
        return SyncSchedules(lambda work: self._running().call(work()), self._bus.schedules)

    def unsubscribe(self, subscription_id: str) -> bool:
        """As ``EventBus.unsubscribe``."""
        return self._change(lambda: self._bus.unsubscribe(subscription_id))

    def off(self, pattern: Any = ANY, handler: HandlerFunction | str | None = None) -> int:
        """As ``EventBus.off``."""
        return self._change(lambda: self._bus.off(pattern, handler))

    def find(self, event_type: Any = ANY, **options: Any) -> Event | None:
        """As ``EventBus.find``."""
        return self._running().call(self._bus.find(event_type, **options))

    def publish(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """As ``EventBus.publish``: returns when the event has ended.

        It uses a ``connection`` in the caller's own thread, as most drivers demand.
        """
        if options.get("connection") is None:
            return self._running().call(self._bus.publish(event_type, payload, metadata, **options))
        self._running().call(self._bus.open())
        return _without_waiting(
            self._bus.publish(event_type, payload, metadata, **options),
            ConfigurationError("an async connection needs an event loop: use EventBus, or a connection that blocks"),
        )

    def emit(self, *args: Any, **options: Any) -> SyncHandle:
        """As ``EventBus.emit``: returns at once. The first use starts the bus."""

        async def send() -> Handle:
            await self._bus.start()
            return self._bus.emit(*args, **options)

        return SyncHandle(self.wait_for, self._running().call(send()))

    def request(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout: Duration,
        **options: Any,
    ) -> Any:
        """As ``EventBus.request``: returns the value of the event's handler."""
        return self._running().call(self._bus.request(event_type, payload, metadata, timeout=timeout, **options))

    def cancel(self, event: Event | SyncHandle | EventRef, reason: str, *, children: bool = False) -> list[Event]:
        """As ``EventBus.cancel``."""
        ref = event.stored().event_id if isinstance(event, SyncHandle) else event
        return self._running().call(self._bus.cancel(ref, reason, children=children))

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """As ``EventBus.wait_until_idle``."""
        return self._running().call(self._bus.wait_until_idle(timeout))

    def shutdown(self, timeout: float | None = None) -> None:
        """As ``EventBus.shutdown``; ends the background thread. A forked child leaves that to its parent."""
        if self._is_of_parent():
            return
        with self._ending:
            with self._changing:
                self._ended, thread = True, self._thread
            if thread is not None:
                try:
                    thread.call(self._bus.shutdown(timeout))
                except EventBusShutdownError:
                    return  # it has ended already
                finally:
                    thread.end()

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine on the event loop of the bus, as ``submit(bus.bus.start)``."""
        return self._running().submit(work())

    def wait_for(self, question: Callable[[], Coroutine[Any, Any, T]], limit: float | None = None) -> T:
        """Run a method of a handle, as ``handle.completed``, on the event loop of the bus, and return its value."""

        async def ask() -> T:
            async with asyncio.timeout(limit):
                return await question()

        self._refuse_in_child()
        if self._thread is not None:
            try:
                return self._thread.call(ask())
            except EventBusShutdownError:
                if not self._ended:
                    raise
        return _without_waiting(
            question(),
            EventBusShutdownError(
                "this SyncEventBus is shut down, and this process did not learn the end of the event"
            ),
        )

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

    def _running(self) -> BusThread:
        self._refuse_in_child()
        with self._changing:
            if self._ended:
                raise EventBusShutdownError(ENDED)
            if self._thread is None:
                self._thread = BusThread(f"durabus-sync-{self._bus.name}", self._end_with_program)
            return self._thread

    def _change(self, change: Callable[[], T]) -> T:
        """Add or remove a handler: in the caller's thread until the background thread runs, then there."""
        self._refuse_in_child()
        with self._changing:
            if self._thread is None and not self._ended:
                return change()
        return self._running().call(_coroutine(change))

    def _end_with_program(self) -> None:
        self.shutdown(min(self._bus.shutdown_timeout, EXIT_TIMEOUT))

    def _is_of_parent(self) -> bool:
        return self._thread is not None and self._thread.process != os.getpid()

    def _refuse_in_child(self) -> None:
        if self._thread is not None and self._is_of_parent():
            raise StoreClosedError(
                f"this SyncEventBus was used in process {self._thread.process}, and now in its child {os.getpid()}, "
                "which has neither its thread nor its connections: make a new SyncEventBus in the child, or use this "
                "one only after the fork"
            )


async def _coroutine(function: Callable[[], T]) -> T:
    return function()


def _without_waiting(question: Coroutine[Any, Any, T], otherwise: Exception) -> T:
    """Return the result of a coroutine that need not wait, as a handle's after a shutdown; raise if it would wait."""
    try:
        question.send(None)
    except StopIteration as answer:
        known: T = answer.value
        return known
    question.close()
    raise otherwise
