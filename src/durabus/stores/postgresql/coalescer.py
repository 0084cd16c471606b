"""Calls that meet share one statement, and so one commit: the next leaves when the one before is back.

A call that finds nothing under way leaves at once, so a single publisher waits for nobody.
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
    """A call that has not left yet."""

    new: Sequence[NewEvent]
    answer: asyncio.Future[list[Event]]


class PublishCoalescer:
    """Used on one event loop only."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[Waiting] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    async def add(self, new: Sequence[NewEvent]) -> list[Event]:
        """Send these events with whoever else has some. A large batch needs no company."""
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
        """Return when everything that was given has been answered."""
        await self._idle.wait()

    def _go_on(self) -> None:
        """Send what came meanwhile, in a task: whoever gives up takes nobody else along."""
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
            for left in self._waiting:  # none, unless the loop ends under us
                left.answer.cancel()

    def _take(self) -> list[Waiting]:
        """As many calls as fit, but at least one. Those who gave up meanwhile are left out."""
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
        except Exception as error:  # noqa: BLE001  (told to those who called; the others still wait for their turn)
            if len(calls) == 1 or not isinstance(error, DurabusError) or isinstance(error, StoreUnavailableError):
                _refuse(calls, error)
                return
            # One of them may be to blame, and all were refused: each has to stand for itself.
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
"""Calls in one statement: what they lock is locked until the last of them is done."""


class CallCoalescer(Generic[A, R]):
    """Used on one event loop only. ``send`` answers to each of the arguments, in their order."""

    def __init__(self, send: Callable[[Sequence[A]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def call(self, argument: A) -> R:
        """Send it with whoever else calls."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-coalescer")
        return await answer

    async def wait_until_idle(self) -> None:
        """Return when everything that was given has been answered."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._send_together([call for call in calls if not call[1].done()])
        finally:
            self._task = None
            for _, answer in self._waiting:  # none, unless the loop ends under us
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
        except Exception as error:  # noqa: BLE001  (told to those who called; the others still wait for their turn)
            if len(calls) == 1 or isinstance(error, StoreUnavailableError):
                _refuse_shared(calls, error)
                return
            # One of them may be to blame, and all were refused: each has to stand for itself.
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
