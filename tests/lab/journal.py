"""The journal of one process of the lab: what its handlers do, outside of the store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from durabus import Context, Event
from durabus.model.result import Suspended
from durabus.testing.history.history import Effect, Line, StepEffect
from durabus.worker.steps import WAIT_FOR

CHARGES = "charges.txt"
TICK, TICKS = 0.002, ".ticks"


class Journal:
    """Records what the handlers of one process do, outside of the store."""

    def __init__(
        self, host: str, folder: Path, write: Callable[[Line], None], now: Callable[[], float], *, place: int
    ) -> None:
        self.folder = folder
        self.place = place
        """The place of the process in its crew."""
        self._host = host
        self._write = write
        self._now = now

    def effect(self, event: Event, handler: str, what: str) -> None:
        self._write(
            Effect(self._now(), self._host, event.id, event.event_id, handler, event.fence, event.attempts, what)
        )

    async def tick(self) -> None:
        """Write the time again and again. Between two lines, the event loop has run what was due at the first one."""
        with (self.folder / f"{self._host}{TICKS}").open("a", buffering=1) as file:
            while True:
                file.write(f"{self._now()}\n")
                await asyncio.sleep(TICK)

    @contextmanager
    def run(self, event: Event, handler: str, *, ends: str = "done") -> Iterator[None]:
        """Record the begin and the end of a handler, which ``ends`` so unless it raises."""
        self.effect(event, handler, "start")
        try:
            yield
        except asyncio.CancelledError:
            self.effect(event, handler, "cancelled")
            raise
        except Suspended:
            self.effect(event, handler, "asleep")
            raise
        except BaseException:
            self.effect(event, handler, "raised")
            raise
        self.effect(event, handler, ends)

    async def step(self, ctx: Context, handler: str, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work in a durable step, and record when it is computed and when its value is there."""
        note = self._step_of(ctx, handler, name)

        async def compute() -> str:
            self._write(note(at=self._now(), what="computed"))
            await work()
            return f"{self._host}, fence {ctx.fence}"

        value = await ctx.step(name, compute)
        self._write(note(at=self._now(), what="returned", value=value))

    def waited(self, ctx: Context, handler: str, met: Event | None) -> None:
        """Record how the wait of a handler ended."""
        note = self._step_of(ctx, handler, WAIT_FOR)
        self._write(note(at=self._now(), what="waited", value=None if met is None else met.event_id))

    def _step_of(self, ctx: Context, handler: str, name: str) -> Callable[..., StepEffect]:
        return partial(StepEffect, host=self._host, id=ctx.event.id, handler=handler, step=name, fence=ctx.fence)

    def charge(self, key: str) -> None:
        """Do what cannot be undone: the ledger is a file, and a line stays in it whatever happens to this process."""
        ledger = os.open(self.folder / CHARGES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(ledger, f"{key}\n".encode())
        finally:
            os.close(ledger)
