"""Threads for plain handlers: daemons, so that a function that never ends cannot keep the program from ending."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_SIZE = 32


class HandlerThreads(Executor):
    """At most ``size`` threads, and one more for each whose function waits for another event.

    Those of a ``ThreadPoolExecutor`` are joined when the program ends, and take nothing from then on: a function that
    waits for another one would wait for ever. Here the program ends, and its events come back with their leases.
    """

    def __init__(self, size: int = DEFAULT_SIZE, name: str = "durabus-handler") -> None:
        self._pool = _Pool(size, name)
        weakref.finalize(self, self._pool.close).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it as soon as a thread is free. Raises ``RuntimeError`` after ``shutdown``."""
        future: Future[T] = Future()
        self._pool.put(future, partial(fn, *args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  (Executor has it so)
        """Take nothing more and drop what has not begun. What runs is not waited for: it may never end."""
        self._pool.close()

    def lend(self) -> None:
        """A thread waits for another event: one more may run."""
        self._pool.resize(+1)

    def take_back(self) -> None:
        """It goes on: one less."""
        self._pool.resize(-1)


class _Pool:
    """What the threads share. They do not hold the executor, so one that is forgotten lets them go."""

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
            self._idle -= 1  # here, so that the next call does not count on the same thread
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
                except BaseException as error:  # noqa: BLE001  (whatever it is, it is told to who waits)
                    future.set_exception(error)
            del future, call, taken  # not kept while this thread waits for the next
