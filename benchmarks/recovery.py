"""Recovery from a real ``kill -9``: how soon the events of a dead worker are handled by another one."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks import raw
from benchmarks.bench import Bench, Fresh
from benchmarks.processes import Child
from benchmarks.results import Row, Target
from durabus import Event, EventBus, EventQueue, new_event, open_store

STUCK = 100


def kill_row(bench: Bench, store: str, fresh: Fresh, milliseconds: float) -> Row:
    """Measure with stores from ``fresh``. The name of the row begins with ``store``."""
    name = f"{store} recovery of {STUCK} events after kill -9, default settings".lstrip()
    bench.say(name)
    samples = []
    for _ in range(bench.size(3, 1)):
        with fresh() as url:
            samples.append(asyncio.run(_recover_from_kill(url)) * 1000)
    return Row(
        name=name,
        unit="ms",
        samples=samples,
        target=Target("value", "<", milliseconds),
        note=(
            "From the kill of a worker process that is inside all of their handlers until another worker, which has "
            "been running, has handled the last of them. Every option of both is at its default."
        ),
    )


async def _recover_from_kill(url: str) -> float:
    """Kill a worker with a handler that never ends, and measure how long another worker takes to handle its events."""
    store = await open_store(url)
    await EventQueue(store).publish_batch([new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(STUCK)])
    handled, done = set[int](), asyncio.Event()

    async def handler(event: Event) -> None:
        handled.add(event.id)
        if len(handled) == STUCK:
            done.set()

    with Child("hang", url) as child:
        await asyncio.to_thread(child.wait_until_ready)
        bus = EventBus(store)
        bus.subscribe(raw.EVENT_TYPE, handler, id="bench")
        async with bus:
            child.kill()
            started = perf_counter()
            await done.wait()
            seconds = perf_counter() - started
    await store.close()
    return seconds
