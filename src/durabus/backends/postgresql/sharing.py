"""Calls of one verb that meet share one statement, and so one commit: the next leaves when the one before is back.

A call that finds nothing under way leaves at once. A task sends it: whoever gives up takes neither the others along nor
the connection, which is lost if a statement is cut off in its middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from durabus.errors import StoreUnavailableError

A = TypeVar("A")
R = TypeVar("R")

MOST = 100
"""Calls in one statement: what they lock is locked until the last of them is done."""


class Sharing(Generic[A, R]):
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
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-sharing")
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
                _refuse(calls, error)
                return
            # One of them may be to blame, and all were refused: each has to stand for itself.
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
