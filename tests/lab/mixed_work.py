"""The work of the ordinary rounds: the verbs of handlers, all in one workload, and the events that ask for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from tests.lab.journal import Journal

from durabus import BatchFailed, Context, Event, EventBus, NewEvent, new_event

HANDLER = "lab.handler"
"""The handler of every event."""
BATCHES = "lab.batches"
"""A further handler of some events. It takes batches."""
SHARED = "lab.shared"
"""A type of event, and a further handler of it that only half of the workers have."""
WORKS, EMITS, FAILS_ONCE, FAILS = "lab.works", "lab.emits", "lab.fails_once", "lab.fails"
SLEEPS, WAITS, SETTLES, BATCHED = "lab.sleeps", "lab.waits", "lab.settles", "lab.batched"
SHARES = {WORKS: 50, EMITS: 12, FAILS_ONCE: 3, FAILS: 1, SLEEPS: 8, WAITS: 6, BATCHED: 12, SHARED: 8}
"""How many of a hundred events have each type. Those that settle a wait come on top."""
ASLEEP = 0.1
WAITS_FOR = 1.0
IN_TIME, LATER, NEVER = "in time", "later", "never"
SETTLED = {IN_TIME: 2, LATER: 2, NEVER: 1}
"""When the event comes that a handler waits for: with its own event, with the next batch, or not at all."""
PART_WITH_KEY = 0.2
PART_OF_BATCH_THAT_FAILS = 0.1


class MixedEvents:
    """Makes the events of a round. ``keys`` is the number of ordering keys that a part of them shares."""

    def __init__(self, chance: random.Random, keys: int) -> None:
        self._chance = chance
        self._keys = keys
        self._number = 0
        self._later: list[NewEvent] = []

    def batch(self, size: int) -> list[NewEvent]:
        """Return the next events: ``size`` of all types, and those that settle waits."""
        settling, self._later = self._later, []
        types = self._chance.choices(list(SHARES), list(SHARES.values()), k=size)
        return [*settling, *(event for kind in types for event in self._events(kind))]

    def _events(self, kind: str) -> Iterator[NewEvent]:
        self._number += 1
        with_key = self._keys and self._chance.random() < PART_WITH_KEY
        key = f"key-{self._chance.randrange(self._keys)}" if with_key else None
        payload = {"number": self._number}
        yield new_event(kind, payload, max_attempts=3 if kind == FAILS else None, ordering_key=key)
        if kind == WAITS:
            when = self._chance.choices(list(SETTLED), list(SETTLED.values()))[0]
            if when == IN_TIME:
                yield new_event(SETTLES, payload)
            elif when == LATER:
                self._later.append(new_event(SETTLES, payload))


def mixed_work(bus: EventBus, journal: Journal, seconds: float) -> None:
    """Subscribe the handlers. What they do depends on the type of the event."""
    bus.subscribe("lab.*", partial(_handle, journal, seconds), id=HANDLER)
    bus.subscribe(BATCHED, partial(_handle_batch, journal, seconds), id=BATCHES, batch=10, within=0.02)
    if journal.place % 2:
        bus.subscribe(SHARED, partial(_handle_shared, journal, seconds), id=SHARED)


async def _handle(journal: Journal, seconds: float, event: Event, ctx: Context) -> None:
    """Work a little; run steps and sleep in between, wait, emit a child or fail."""
    with journal.run(event, HANDLER):
        await work(seconds)
        if event.type == FAILS or (event.type == FAILS_ONCE and event.attempts == 1):
            raise ConnectionError("as planned")
        if event.type == EMITS:
            ctx.emit(SLEEPS, None)
        elif event.type == SLEEPS:
            await journal.step(ctx, HANDLER, "before", partial(work, seconds))
            await ctx.sleep(ASLEEP)
            await journal.step(ctx, HANDLER, "after", partial(work, seconds))
        elif event.type == WAITS:
            journal.waited(ctx, HANDLER, await ctx.wait_for(SETTLES, where=event.payload, timeout=WAITS_FOR))


async def _handle_batch(journal: Journal, seconds: float, events: list[Event]) -> None:
    """Work on all events at once, and fail for some of them."""
    failed = [event for event in events if random.random() < PART_OF_BATCH_THAT_FAILS]
    with ExitStack() as runs:
        for event in events:
            runs.enter_context(journal.run(event, BATCHES, ends="raised" if event in failed else "done"))
        await work(seconds)
    if failed:
        raise BatchFailed({event: ConnectionError("as planned") for event in failed})


async def _handle_shared(journal: Journal, seconds: float, event: Event) -> None:
    with journal.run(event, SHARED):
        await work(seconds)


async def work(seconds: float) -> None:
    """Take about so many seconds."""
    await asyncio.sleep(seconds * random.uniform(0.2, 1.8))
