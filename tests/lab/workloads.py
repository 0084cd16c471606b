"""What the handlers of a lab process do: short work, a saga of steps and children, or two handlers for one event."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from durabus import Context, Event, EventBus
from durabus.testing.history.history import Effect, Line, StepEffect

HANDLER = "lab.handler"
ORDER = "saga.order"
BEFORE_CHILDREN, AFTER_CHILDREN = ("reserve", "charge"), ("invoice", "mail")
CHILDREN = ("saga.pack", "saga.ship")
CHARGES = "charges.txt"
PAIR = "pair.event"
FIRST, SECOND = "pair.first", "pair.second"
GO_ON = "go-on"
"""While this file does not exist, the second handler of a pair does not end."""
TICK, TICKS = 0.002, ".ticks"


class Journal:
    """Records what the handlers of one process do, outside of the store."""

    def __init__(self, host: str, folder: Path, write: Callable[[Line], None], now: Callable[[], float]) -> None:
        self.folder = folder
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
    def run(self, event: Event, handler: str) -> Iterator[None]:
        """Record the begin and the end of a handler."""
        self.effect(event, handler, "start")
        try:
            yield
        except asyncio.CancelledError:
            self.effect(event, handler, "cancelled")
            raise
        except BaseException:
            self.effect(event, handler, "raised")
            raise
        self.effect(event, handler, "done")

    async def step(self, ctx: Context, handler: str, name: str, seconds: float) -> None:
        """Charge in a durable step, and record when it is computed and when its value is there."""
        note = partial(StepEffect, host=self._host, id=ctx.event.id, handler=handler, step=name, fence=ctx.fence)

        async def charge() -> str:
            self._write(note(at=self._now(), what="computed"))
            await asyncio.sleep(seconds * random.uniform(0.2, 1.8))
            self._charge(f"{ctx.event.payload['order']} {handler}/{name}")
            return f"{self._host}, fence {ctx.fence}"

        value = await ctx.step(name, charge)
        self._write(note(at=self._now(), what="returned", value=value))

    def _charge(self, key: str) -> None:
        """Do what cannot be undone: the ledger is a file, and a line stays in it whatever happens to this process."""
        ledger = os.open(self.folder / CHARGES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(ledger, f"{key}\n".encode())
        finally:
            os.close(ledger)


def short_work(bus: EventBus, journal: Journal, seconds: float) -> None:
    """Sleep a little; emit a child, fail once or fail always, as the type of the event says."""

    @bus.on("lab.*", id=HANDLER)
    async def handle(event: Event, ctx: Context) -> None:
        with journal.run(event, HANDLER):
            await asyncio.sleep(seconds * random.uniform(0.2, 1.8))
            if event.type == "lab.fails" or (event.type == "lab.fails_once" and event.attempts == 1):
                raise ConnectionError("as planned")
            if event.type == "lab.emits":
                ctx.emit("lab.works", None)


def saga(bus: EventBus, journal: Journal, seconds: float) -> None:
    """Run four steps and wait for two children in between. Each child has a step of its own."""

    @bus.on(ORDER, id=ORDER)
    async def order(event: Event, ctx: Context) -> None:
        with journal.run(event, ORDER):
            for name in BEFORE_CHILDREN:
                await journal.step(ctx, ORDER, name, seconds)
            for kind in CHILDREN:
                await ctx.emit(kind, {"order": event.payload["order"]})
            for name in AFTER_CHILDREN:
                await journal.step(ctx, ORDER, name, seconds)

    for kind in CHILDREN:
        bus.subscribe(kind, partial(_child, journal, kind, seconds), id=kind)


async def _child(journal: Journal, kind: str, seconds: float, event: Event, ctx: Context) -> None:
    with journal.run(event, kind):
        await journal.step(ctx, kind, "book", seconds)


def pair(bus: EventBus, journal: Journal, _seconds: float) -> None:
    """Let the first handler end at once, and the second one when the file ``GO_ON`` exists."""

    ticking: list[asyncio.Task[None]] = []

    @bus.on(PAIR, id=FIRST)
    async def first(event: Event) -> None:
        if not ticking:
            ticking.append(asyncio.create_task(journal.tick()))
        with journal.run(event, FIRST):
            pass

    @bus.on(PAIR, id=SECOND)
    async def second(event: Event) -> None:
        with journal.run(event, SECOND):
            while not (journal.folder / GO_ON).exists():  # noqa: ASYNC110  (another process makes the file)
                await asyncio.sleep(0.05)


WORKLOADS: dict[str, Callable[[EventBus, Journal, float], None]] = {
    "short work": short_work,
    "saga": saga,
    "pair": pair,
}
