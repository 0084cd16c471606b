"""Calls that wait for a node, their replies, and the barriers of reading calls.

Callers are tasks of any event loop in any thread. The node replies from its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import anyio

from durabus.clock import monotonic
from durabus.errors import DurabusError, StoreClosedError, StoreUnavailableError
from durabus.stores.replicated_log.own_loop import CLOSED
from durabus.stores.replicated_log.transport import BEGINNING, Position, Transport

Send = Callable[[], Coroutine[Any, Any, None]]
Kind = Literal["command", "publish", "barrier"]

RETRY_AFTER = 0.1
CANCEL_WITHIN = 2.0


class PendingCall:
    """One call that waits for its reply. The caller's loop makes it; the node's thread replies."""

    __slots__ = ("data", "expires", "future", "kind", "loop")

    def __init__(self, kind: Kind, data: Any) -> None:
        self.kind = kind
        self.data = data
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.expires = 0.0


class Sent:
    """The calls of one record that was sent and has not been read back."""

    __slots__ = ("at", "calls", "lane", "send")

    def __init__(self, calls: list[PendingCall], lane: str) -> None:
        self.calls = calls
        self.lane = lane
        self.send: Send | None = None
        self.at = float("inf")
        """When the broker confirmed the record."""


class Replies:
    """Collects replies while a batch of records is applied, and delivers them with one wake-up for each loop."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def add(self, call: PendingCall, value: Any) -> None:
        """Add a reply. ``value`` is the result, or the error to raise."""
        self._waiting.setdefault(call.loop, []).append((call.future, value))

    def send(self) -> None:
        """Deliver the replies to the callers."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for loop, replies in waiting.items():
            with contextlib.suppress(RuntimeError):  # the loop and its tasks have ended
                loop.call_soon_threadsafe(_hand_over, replies)


def _hand_over(replies: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, value in replies:
        if future.done():
            continue  # its caller was cancelled
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


class Inbox:
    """Calls on their way from any thread to the node's thread."""

    def __init__(self, wake: Callable[[], object], *, timeout: float) -> None:
        self._wake = wake
        """Makes the node's thread call ``take``."""
        self._timeout = timeout
        self._lock = threading.Lock()
        self._calls: list[PendingCall] = []
        self._woken = False
        self.closed = False

    async def ask(self, call: PendingCall) -> Any:
        """Hand a call to the node and wait for its reply."""
        call.expires = monotonic() + self._timeout
        with self._lock:
            if self.closed:
                raise StoreClosedError(CLOSED)
            self._calls.append(call)
            wake, self._woken = not self._woken, True
        if wake:
            self._wake()
        try:
            return await asyncio.shield(call.future)
        except asyncio.CancelledError:
            call.future.add_done_callback(_retrieve_exception)
            with anyio.move_on_after(CANCEL_WITHIN, shield=True):
                await self._withdraw(call)
            raise

    def take(self) -> list[PendingCall]:
        """Return the calls that have come since the last time."""
        with self._lock:
            calls, self._calls = self._calls, []
            self._woken = False
        return calls

    def close(self) -> None:
        """Refuse all further calls."""
        with self._lock:
            self.closed = True

    async def _withdraw(self, call: PendingCall) -> None:
        """Remove a cancelled call that was not sent. Wait for one that was sent, so that it has no later effect."""
        with self._lock:
            waiting = call in self._calls
            if waiting:
                self._calls.remove(call)
        if waiting:
            call.future.cancel()
        else:
            await asyncio.wait([call.future])


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a cancelled call, so that asyncio does not report it as never retrieved."""
    if not future.cancelled():
        future.exception()


class Barriers:
    """Reading calls that wait until the replica has caught up. Runs in the node's loop.

    One request to the broker serves all calls that were waiting when it was sent.
    """

    def __init__(self, transport: Transport, replies: Replies) -> None:
        self._transport = transport
        self._replies = replies
        self._asking: list[PendingCall] = []
        self._asked: list[PendingCall] = []
        """The calls that the present request to the broker serves."""
        self._behind: list[tuple[Position, list[PendingCall]]] = []
        self._reached: Position = BEGINNING
        self.running = False

    @property
    def needed(self) -> bool:
        """Whether the node must start ``run``."""
        return bool(self._asking) and not self.running

    def add(self, call: PendingCall) -> None:
        """Add a reading call."""
        self._asking.append(call)

    async def run(self) -> None:
        """Ask the broker where the log ends, until no call waits for that."""
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
        """Reply to the calls that waited for this position of the replica."""
        self._reached = position
        if not self._behind:
            return
        for head, calls in self._behind:
            if position >= head:
                for call in calls:
                    self._replies.add(call, None)
        self._behind = [(head, calls) for head, calls in self._behind if position < head]

    def give_up_late(self, now: float, error: DurabusError) -> None:
        """Fail the calls that have waited too long."""
        for waiting in self._waiting():
            for call in [call for call in waiting if call.expires < now]:
                waiting.remove(call)
                self._replies.add(call, error)
        self._behind = [(head, calls) for head, calls in self._behind if calls]

    def fail_all(self, error: DurabusError) -> None:
        """Fail all calls."""
        for waiting in self._waiting():
            for call in waiting:
                self._replies.add(call, error)
            waiting.clear()

    def _waiting(self) -> list[list[PendingCall]]:
        """Return the lists of calls that have no reply yet."""
        return [self._asking, self._asked, *(calls for _, calls in self._behind)]
