"""What the handlers of a lab process do: mixed work, a saga of steps and children, or two handlers for one event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tests.lab.journal import Journal
from tests.lab.mixed_work import mixed_work, work

from durabus import Context, Event, EventBus

ORDER = "saga.order"
BEFORE_CHILDREN, AFTER_CHILDREN = ("reserve", "charge"), ("invoice", "mail")
CHILDREN = ("saga.pack", "saga.ship")
PAIR = "pair.event"
FIRST, SECOND = "pair.first", "pair.second"
GO_ON = "go-on"
"""While this file does not exist, the second handler of a pair does not end."""


def saga(bus: EventBus, journal: Journal, seconds: float) -> None:
    """Run four steps and wait for two children in between. Each child has a step of its own."""

    @bus.on(ORDER, id=ORDER)
    async def order(event: Event, ctx: Context) -> None:
        with journal.run(event, ORDER):
            for name in BEFORE_CHILDREN:
                await _charge(journal, ctx, ORDER, name, seconds)
            for kind in CHILDREN:
                await ctx.emit(kind, {"order": event.payload["order"]})
            for name in AFTER_CHILDREN:
                await _charge(journal, ctx, ORDER, name, seconds)

    for kind in CHILDREN:
        bus.subscribe(kind, partial(_child, journal, kind, seconds), id=kind)


async def _child(journal: Journal, kind: str, seconds: float, event: Event, ctx: Context) -> None:
    with journal.run(event, kind):
        await _charge(journal, ctx, kind, "book", seconds)


async def _charge(journal: Journal, ctx: Context, handler: str, name: str, seconds: float) -> None:
    """Charge in a durable step: a line in a ledger outside of the store."""

    async def charge() -> None:
        await work(seconds)
        journal.charge(f"{ctx.event.payload['order']} {handler}/{name}")

    await journal.step(ctx, handler, name, charge)


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
    "mixed work": mixed_work,
    "saga": saga,
    "pair": pair,
}
