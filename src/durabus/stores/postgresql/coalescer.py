"""Sends calls that come at the same time in one statement, and so in one commit.

While a statement is under way, new calls wait; the next statement takes all of them. A call that finds no statement
under way leaves at once, so a single caller never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from durabus.errors import DurabusError, StoreUnavailableError
from durabus.model.event import Event, NewEvent

MOST_EVENTS = 500
MOST_CHARACTERS = 1_000_000

Send = Callable[[Sequence[NewEvent]], Awaitable[list[Event]]]


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """A publish that waits for the next statement."""

    new: Sequence[NewEvent]
    answer: asyncio.Future[list[Event]]


class PublishCoalescer:
    """Combines publishes. Only one event loop may use it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[Waiting] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    async def add(self, new: Sequence[NewEvent]) -> list[Event]:
        """Send these events together with those of other calls. A large batch goes alone."""
        if len(new) >= MOST_EVENTS:
            return await self._send(new)
        if self._idle.is_set():
            self._idle.clear()
            try:
                return await self._send(new)
            finally:
                self._go_on()
        waiting = Waiting(new, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        return await waiting.answer

    async def wait_until_idle(self) -> None:
        """Return when every call has its result."""
        await self._idle.wait()

    def _go_on(self) -> None:
        """Send the calls that wait, in a task: a cancelled caller must not cancel the others."""
        if self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-publish")
        else:
            self._idle.set()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._send_together(self._take())
        finally:
            self._task = None
            self._idle.set()
            for left in self._waiting:  # none, unless the event loop ends
                left.answer.cancel()

    def _take(self) -> list[Waiting]:
        """Return as many calls as fit, but at least one. Cancelled calls are left out."""
        taken: list[Waiting] = []
        events = characters = 0
        while self._waiting:
            new = self._waiting[0].new
            events += len(new)
            characters += sum(len(one.payload_json) for one in new)
            if taken and (events > MOST_EVENTS or characters > MOST_CHARACTERS):
                break
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                taken.append(waiting)
        return taken

    async def _send_together(self, calls: list[Waiting]) -> None:
        if not calls:
            return
        try:
            events = await self._send([one for call in calls for one in call.new])
        except asyncio.CancelledError:
            for call in calls:
                call.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (its callers get it; the other calls go on)
            if len(calls) == 1 or not isinstance(error, DurabusError) or isinstance(error, StoreUnavailableError):
                _refuse(calls, error)
                return
            # One call may have caused the error, and all were refused: send each one alone.
            for call in calls:
                await self._send_together([call])
        else:
            _answer(calls, events)


def _answer(calls: list[Waiting], events: list[Event]) -> None:
    first = 0
    for call in calls:
        last = first + len(call.new)
        if not call.answer.done():
            call.answer.set_result(events[first:last])
        first = last


def _refuse(calls: list[Waiting], error: Exception) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)


A = TypeVar("A")
R = TypeVar("R")

MOST = 100
"""Maximum number of calls in one statement: their rows stay locked until the last call is done."""


class CallCoalescer(Generic[A, R]):
    """Combines calls of one verb. Only one event loop may use it. ``send`` returns one result for each argument.

    A task sends the calls. So a cancelled caller neither cancels the others nor cuts off a statement in its middle,
    which would cost the connection.
    """

    def __init__(self, send: Callable[[Sequence[A]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def call(self, argument: A) -> R:
        """Send the argument together with those of other calls."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-coalescer")
        return await answer

    async def wait_until_idle(self) -> None:
        """Return when every call has its result."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._send_together([call for call in calls if not call[1].done()])
        finally:
            self._task = None
            for _, answer in self._waiting:  # none, unless the event loop ends
                answer.cancel()

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
                _refuse_shared(calls, error)
                return
            # One call may have caused the error, and all were refused: send each one alone.
            for call in calls:
                await self._send_together([call])
        else:
            for (_, answer), found in zip(calls, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)


def _refuse_shared(calls: Sequence[tuple[A, asyncio.Future[R]]], error: Exception) -> None:
    for _, answer in calls:
        if not answer.done():
            answer.set_exception(error)
