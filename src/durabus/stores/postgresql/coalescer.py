"""Sends calls that come at the same time in one statement, and so in one commit.

While a statement is under way, new calls wait; the next statement takes all of them. A call that finds no statement
under way leaves at once, so a single caller never waits.

Other stores join calls in their own way: Redis pipelines the bytes of separate commands on one socket, SQLite runs all
writes that wait in one thread and one transaction, and a node of the replicated log waits until it has read its record
back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from durabus.errors import StoreUnavailableError
from durabus.model.event import Event, NewEvent

A = TypeVar("A")
R = TypeVar("R")

MOST = 100
"""Maximum number of calls in one statement: their rows stay locked until the last call is done."""
MOST_EVENTS = 500
MOST_CHARACTERS = 1_000_000

Publish = Callable[[Sequence[NewEvent]], Awaitable[list[Event]]]


class CallCoalescer(Generic[A, R]):
    """Combines calls of one verb. Only one event loop may use it. ``send`` returns one result for each argument.

    A task sends the calls. So a cancelled caller neither cancels the others nor cuts off a statement in its middle,
    which would cost the connection.
    """

    def __init__(self, send: Callable[[Sequence[A]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    async def call(self, argument: A) -> R:
        """Send the argument together with those of other calls."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, answer))
        if self._idle.is_set():
            self._go_on()
        return await answer

    async def wait_until_idle(self) -> None:
        """Return when every call has its result."""
        await self._idle.wait()

    def _go_on(self) -> None:
        if self._waiting:
            self._idle.clear()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-coalescer")
        else:
            self._idle.set()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._send_together(self._take())
        finally:
            self._task = None
            self._idle.set()
            for _, answer in self._waiting:  # none, unless the event loop ends
                answer.cancel()

    def _take(self) -> list[tuple[A, asyncio.Future[R]]]:
        """Return as many calls as fit into one statement. Cancelled calls are left out."""
        taken = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        return [call for call in taken if not call[1].done()]

    async def _send_together(self, calls: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        if not calls:
            return
        try:
            answers = await self._send([argument for argument, _ in calls])
        except asyncio.CancelledError:
            for _, answer in calls:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (its callers get it; the other calls go on)
            if len(calls) == 1 or isinstance(error, StoreUnavailableError):
                _refuse(calls, error)
                return
            # One call may have caused the error, and all were refused: send each one alone.
            for call in calls:
                await self._send_together([call])
        else:
            for (_, answer), found in zip(calls, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)


def _refuse(calls: Sequence[tuple[A, asyncio.Future[R]]], error: Exception) -> None:
    for _, answer in calls:
        if not answer.done():
            answer.set_exception(error)


class PublishCoalescer(CallCoalescer[Sequence[NewEvent], list[Event]]):
    """Combines publishes. A publish that finds no statement under way needs no task: its caller sends it."""

    def __init__(self, publish: Publish) -> None:
        super().__init__(self._publish_together)
        self._publish = publish

    async def add(self, new: Sequence[NewEvent]) -> list[Event]:
        """Send these events together with those of other calls. A large batch goes alone."""
        if len(new) >= MOST_EVENTS:
            return await self._publish(new)
        if not self._idle.is_set():
            return await self.call(new)
        self._idle.clear()
        try:
            return await self._publish(new)
        finally:
            self._go_on()

    async def _publish_together(self, batches: Sequence[Sequence[NewEvent]]) -> list[list[Event]]:
        events = await self._publish([one for new in batches for one in new])
        ends = accumulate(len(new) for new in batches)
        return [events[end - len(new) : end] for new, end in zip(batches, ends, strict=True)]

    def _take(self) -> list[tuple[Sequence[NewEvent], asyncio.Future[list[Event]]]]:
        """Return as many publishes as fit, but at least one. Cancelled ones are left out."""
        taken: list[tuple[Sequence[NewEvent], asyncio.Future[list[Event]]]] = []
        events = characters = 0
        while self._waiting:
            new = self._waiting[0][0]
            events += len(new)
            characters += sum(len(one.payload_json) for one in new)
            if taken and (events > MOST_EVENTS or characters > MOST_CHARACTERS):
                break
            call = self._waiting.popleft()
            if not call[1].done():
                taken.append(call)
        return taken
