"""Those who wait for a node's answers: tasks of any loop in any thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Literal

Send = Callable[[], Coroutine[Any, Any, None]]
Kind = Literal["command", "publish", "barrier"]


class Call:
    """One call on its way. Made in the caller's loop, answered from the node's thread."""

    __slots__ = ("data", "expires", "future", "kind", "loop")

    def __init__(self, kind: Kind, data: Any) -> None:
        self.kind = kind
        self.data = data
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.expires = 0.0


class Sent:
    """What was sent under one number, and waits to come back."""

    __slots__ = ("at", "calls", "lane", "send")

    def __init__(self, calls: list[Call], lane: str) -> None:
        self.calls = calls
        self.lane = lane
        self.send: Send | None = None
        self.at = float("inf")
        """When the broker said that it has it."""


class Replies:
    """Answers gathered while a batch of records is applied, and handed over with one wake-up per loop."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def add(self, call: Call, value: Any) -> None:
        """``value`` is the answer, or the error to raise."""
        self._waiting.setdefault(call.loop, []).append((call.future, value))

    def send(self) -> None:
        """Let the callers have them."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for loop, replies in waiting.items():
            with contextlib.suppress(RuntimeError):  # that loop has ended, and its tasks with it
                loop.call_soon_threadsafe(_hand_over, replies)


def _hand_over(replies: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, value in replies:
        if future.done():
            continue  # its caller was cancelled
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)
