"""Those who wait for a node's answers: tasks of any loop in any thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from durabus.errors import DurabusError, StoreUnavailableError
from durabus.stores.replicated_log.transport import BEGINNING, Position, Transport

Send = Callable[[], Coroutine[Any, Any, None]]
Kind = Literal["command", "publish", "barrier"]


class PendingCall:
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

    def __init__(self, calls: list[PendingCall], lane: str) -> None:
        self.calls = calls
        self.lane = lane
        self.send: Send | None = None
        self.at = float("inf")
        """When the broker said that it has it."""


class Replies:
    """Answers gathered while a batch of records is applied, and handed over with one wake-up per loop."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def add(self, call: PendingCall, value: Any) -> None:
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


RETRY_AFTER = 0.1


class Barriers:
    """Those who ask while the broker is asked share the next question. Lives in the node's loop."""

    def __init__(self, transport: Transport, replies: Replies) -> None:
        self._transport = transport
        self._replies = replies
        self._asking: list[PendingCall] = []
        self._asked: list[PendingCall] = []
        """For whom the broker is being asked."""
        self._behind: list[tuple[Position, list[PendingCall]]] = []
        self._reached: Position = BEGINNING
        self.running = False

    @property
    def needed(self) -> bool:
        """Whether ``run`` must be started."""
        return bool(self._asking) and not self.running

    def add(self, call: PendingCall) -> None:
        """Somebody wants to read."""
        self._asking.append(call)

    async def run(self) -> None:
        """Ask where the log ends, for all who wait, until nobody does."""
        try:
            while self._asking:
                self._asked, self._asking = self._asking, []
                try:
                    head = await self._transport.head()
                except StoreUnavailableError:
                    self._asking[:0], self._asked = self._asked, []
                    await asyncio.sleep(RETRY_AFTER)
                    continue
                self._behind.append((head, self._asked))
                self._asked = []
                self.reached(self._reached)
                self._replies.send()
        finally:
            self.running = False

    def reached(self, position: Position) -> None:
        """The replica is here now."""
        self._reached = position
        if not self._behind:
            return
        for head, calls in self._behind:
            if position >= head:
                for call in calls:
                    self._replies.add(call, None)
        self._behind = [(head, calls) for head, calls in self._behind if position < head]

    def give_up_late(self, now: float, error: DurabusError) -> None:
        """Tell those who waited too long."""
        for waiting in self._waiting():
            for call in [call for call in waiting if call.expires < now]:
                waiting.remove(call)
                self._replies.add(call, error)
        self._behind = [(head, calls) for head, calls in self._behind if calls]

    def fail_all(self, error: DurabusError) -> None:
        """Answer everybody with an error."""
        for waiting in self._waiting():
            for call in waiting:
                self._replies.add(call, error)
            waiting.clear()

    def _waiting(self) -> list[list[PendingCall]]:
        """Everybody who has no answer yet."""
        return [self._asking, self._asked, *(calls for _, calls in self._behind)]
