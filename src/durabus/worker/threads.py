"""Daemon threads for plain handlers: a function that never ends cannot keep the program alive."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from durabus.clock import perf_counter
from durabus.model.event import Event
from durabus.worker.handler import Context, Handler, SyncContext

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_SIZE = 32


class HandlerThreads(Executor):
    """At most ``size`` threads, and one more for each whose function waits for another event.

    Python joins the threads of a ``ThreadPoolExecutor`` when the program ends, and they take no further call: a
    function that waits for another one would wait for ever. Here the program ends, and its events come back when
    their leases expire.
    """

    def __init__(self, size: int = DEFAULT_SIZE, name: str = "durabus-handler") -> None:
        self._pool = _Pool(size, name)
        weakref.finalize(self, self._pool.close).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the function as soon as a thread is free. Raises ``RuntimeError`` after ``shutdown``."""
        future: Future[T] = Future()
        self._pool.put(future, partial(fn, *args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  (Executor has it so)
        """Take no further call, drop those that have not begun, and do not wait for the others: they may never end."""
        self._pool.close()

    def yield_thread(self) -> None:
        """Let one more thread run: a thread waits for another event."""
        self._pool.resize(+1)

    def resume(self) -> None:
        """Let one thread less run: the wait is over."""
        self._pool.resize(-1)


class _Pool:
    """The state that the threads share. It does not refer to the executor, so Python can free that and end them."""

    def __init__(self, size: int, name: str) -> None:
        self._name = name
        self._limit = size
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition(threading.Lock())

    def put(self, future: Future[Any], call: Callable[[], Any]) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("these threads are closed")
            self._calls.append((future, call))
            self._have_it_taken()

    def resize(self, by: int) -> None:
        with self._changed:
            self._limit += by
            if self._calls:
                self._have_it_taken()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            while self._calls:
                self._calls.popleft()[0].cancel()
            self._changed.notify_all()

    def _have_it_taken(self) -> None:
        if self._idle:
            self._idle -= 1  # at once, so that the next call does not count on the same thread
            self._changed.notify()
        elif self._threads < self._limit:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"{self._name}_{self._threads}", daemon=True).start()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._calls:
                if self._closed or self._threads > self._limit:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._changed.wait()
            return self._calls.popleft()

    def _serve(self) -> None:
        while (taken := self._next()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  (the caller gets it from the future)
                    future.set_exception(error)
            del future, call, taken  # do not keep them alive while this thread waits for the next call


logger = logging.getLogger("durabus.worker")


class NotStarted(Exception):  # noqa: N818  (a signal: there was no attempt)
    """Nothing of the handler has run, so the event goes back without losing an attempt."""


class Closed(GeneratorExit):
    """Python closes the coroutine that waits for the handler, as when its event loop is gone.

    It differs from a ``GeneratorExit`` that the handler raises itself: after this one, nothing may run.
    """


class TimeoutExpired(Exception):  # noqa: N818  (an internal signal, not a handler's own TimeoutError)
    """The handler used up its time."""


_running: defaultdict[tuple[str, str], dict[str, Future[Any]]] = defaultdict(dict)
"""The calls of this process that have not ended, by bus and event id, then by handler id."""
_changing = threading.Lock()
os.register_at_fork(after_in_child=_running.clear)  # the threads stay with the parent


def is_in_thread(event: Event) -> bool:
    """Whether a function of the event runs in a thread, or is about to begin."""
    return bool(_running) and (event.bus, event.event_id) in _running


async def threads_ended(event: Event) -> None:
    """Wait until no function of the event runs in a thread of this process any more."""
    while calls := list(_running.get((event.bus, event.event_id), {}).values()):
        await _ended(*calls)


async def _ended(*calls: Future[Any], timeout: float | None = None) -> bool:  # noqa: ASYNC109  (returns, does not raise)
    waited = {asyncio.wrap_future(call) for call in calls}
    for future in waited:
        future.add_done_callback(_take_notice)
    try:
        return not (await asyncio.wait(waited, timeout=timeout))[1]
    except GeneratorExit:
        raise Closed from None


def _take_notice(future: asyncio.Future[Any]) -> None:
    """Read the exception of a function that outlived its claim; otherwise asyncio would log it."""
    if not future.cancelled():
        future.exception()


class ThreadCall:
    """One call of a plain function in a thread. All ``events`` have their claims kept until the function ends."""

    def __init__(
        self, handler: Handler, events: Sequence[Event], threads: HandlerThreads, call: Callable[[], Any]
    ) -> None:
        self.started: float | None = None
        self._handler = handler
        self._events = events
        self._threads = threads
        self._call = call
        self._over = threading.Event()
        self._waits: set[asyncio.Task[Any]] = set()
        """The tasks in which the function waits for the end of other events."""

    async def returned(self) -> Any:
        """Return the function's value. If it exceeded its timeout, raise ``TimeoutExpired`` once it has ended."""
        event, timeout = self._events[0], self._handler.timeout
        for one in self._events:
            while (before := _running.get((one.bus, one.event_id), {}).get(self._handler.id)) is not None:
                await _ended(before)
        future = self._submit()
        try:
            if timeout is None:
                await _ended(future)
            elif not await self._ends_in(future, timeout):
                self._end_waits()
                logger.warning(
                    "handler %s of event %s (%s) runs longer than its timeout of %g s. A thread cannot be stopped: the "
                    "attempt has failed, and the event waits for the end of the function",
                    self._handler.id,
                    event.event_id,
                    event.type,
                    timeout,
                )
                await _ended(future)
                raise TimeoutExpired
        finally:
            self._end_waits()
            future.cancel()  # a call that has not begun by now must never begin
        if future.cancelled():
            raise NotStarted("its threads were closed before it began")
        return future.result()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The function waits for another event: another thread may run meanwhile, and its timeout ends the wait."""
        task = asyncio.current_task()
        if self._over.is_set() or task is None:
            raise TimeoutError(self._too_late)
        self._waits.add(task)
        self._threads.yield_thread()
        try:
            yield
        except asyncio.CancelledError:
            if not self._over.is_set():
                raise
            task.uncancel()
            raise TimeoutError(self._too_late) from None
        finally:
            self._threads.resume()
            self._waits.discard(task)

    @property
    def _too_late(self) -> str:
        return f"the attempt of handler {self._handler.id} is over: it does not wait for other events any more"

    def _end_waits(self) -> None:
        self._over.set()
        for task in self._waits.copy():
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _submit(self) -> Future[Any]:
        variables = contextvars.copy_context()
        variables.run(CALL.set, self)
        try:
            future = self._threads.submit(variables.run, self._run)
        except RuntimeError as error:
            raise NotStarted(f"no thread for handler {self._handler.id}: {error}") from error
        with _changing:
            for event in self._events:
                _running[event.bus, event.event_id][self._handler.id] = future
        future.add_done_callback(self._forget)
        return future

    def _forget(self, _future: Future[Any]) -> None:
        with _changing:
            for event in self._events:
                calls = _running[event.bus, event.event_id]
                calls.pop(self._handler.id, None)
                if not calls:
                    del _running[event.bus, event.event_id]

    def _run(self) -> Any:
        self.started = perf_counter()
        try:
            return self._call()
        except StopIteration as error:
            raise RuntimeError("handler raised StopIteration") from error  # a future cannot carry it

    async def _ends_in(self, future: Future[Any], timeout: float) -> bool:  # noqa: ASYNC109  (it counts from the begin of the call)
        limit = timeout
        while not await _ended(future, timeout=limit):
            if self.started is None:
                if future.cancel():
                    raise NotStarted(f"no thread was free for {timeout:g} s")
                limit = timeout  # it is about to begin
            elif (limit := self.started + timeout - perf_counter()) <= 0:
                return False
        return True


def call_with_event(handler: Handler, context: Context, threads: HandlerThreads) -> ThreadCall:
    """Return the call of a plain handler with its event."""
    loop = asyncio.get_running_loop()
    sync_context = SyncContext(context.event, context.worker_id, context.emitter, context.steps, loop)
    return ThreadCall(handler, (context.event,), threads, partial(handler.call, context.event, sync_context))


CALL: contextvars.ContextVar[ThreadCall | None] = contextvars.ContextVar("durabus_thread_call", default=None)
"""The call of the plain handler that runs in this context."""
