"""A call on its way from an event loop to one of the store's threads, and its answer on the way back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from durabus.backends.sqlite.transaction import Transaction
from durabus.model.event import NewEvent


class Operation:
    """One call. Either ``run`` is to be run, or ``new`` is to be added together with its neighbours."""

    __slots__ = ("error", "future", "loop", "new", "result", "run")

    def __init__(self, run: Callable[[Transaction], Any] | None, new: Sequence[NewEvent] = ()) -> None:
        self.run = run
        self.new = new
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


class Watch:
    """A worker that sleeps until its bus may have work."""

    __slots__ = ("bus", "error", "future", "loop", "result")

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bool] = self.loop.create_future()
        self.result = True
        self.error: BaseException | None = None


class Signal:
    """Something for the writer that nobody waits for."""


STOP = Signal()
"""Finish and end."""
NOTICED = Signal()
"""The log was written to."""


def deliver(done: Iterable[Operation | Watch]) -> None:
    """Answer from a store's thread. One wake-up for each event loop, however many calls it made."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Operation | Watch]] = {}
    for operation in done:
        by_loop.setdefault(operation.loop, []).append(operation)
    for loop, operations in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, operations)


def _resolve(operations: list[Operation | Watch]) -> None:
    for operation in operations:
        future = operation.future
        if future.done():
            continue
        if operation.error is None:
            future.set_result(operation.result)
        else:
            future.set_exception(operation.error)
