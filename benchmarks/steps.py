"""Durable steps: how many a store keeps in a second, and how soon a handler goes on whose steps are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter

from benchmarks.bench import Bench, Fresh, percentile, same_gc
from benchmarks.databases import postgresql
from benchmarks.results import Row, Target
from benchmarks.runtime import Files
from durabus import Context, Event, EventBus, TransientError, new_event, open_store

EVENTS = 64
MEMOS = 100
HANDLERS = 10


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_folder() as folder, postgresql(folder) as databases:
        for name, fresh, steps_a_second in (
            ("SQLite", Files(folder).fresh, 5_000),
            ("PostgreSQL", databases.fresh, 8_000),
        ):
            yield _steps_row(bench, name, fresh, steps_a_second)
            yield _resume_row(bench, name, fresh)
            yield _handlers_row(bench, name, fresh)


def _steps_row(bench: Bench, name: str, fresh: Fresh, target: float) -> Row:
    def side(count: int) -> float:
        with fresh() as url:
            return asyncio.run(_keep_steps(url, count // EVENTS))

    label = f"{name}, durable steps of {EVENTS} events side by side"
    return Row(
        name=label,
        unit="/s",
        samples=bench.alternate({label: side}, {label: bench.size(12_800, 1_280)})[label],
        target=Target("value", "≥", target),
        note="Each handler awaits one step after the other; a step has returned when its value is on the disk.",
    )


def _resume_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    label = f"{name}, a handler with {MEMOS} kept steps goes on"
    bench.say(label)
    with fresh() as url, same_gc():
        samples = asyncio.run(_resume(url, bench.size(100, 10)))
    return Row(
        name=label,
        unit="ms",
        samples=samples,
        target=Target("value", "<", 5),
        note=(
            f"From the call of the handler in its second attempt until all {MEMOS} kept values are returned; p99 "
            f"{percentile(samples, 0.99):.2f} ms. The claim brings the values along, so the store is not asked."
        ),
    )


def _handlers_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    def handlers(number: int) -> Callable[[int], float]:
        def side(count: int) -> float:
            with fresh() as url:
                return asyncio.run(_drain(url, count // number, number))

        return side

    sides = {f"{name} {HANDLERS} handlers": handlers(HANDLERS), f"{name} 1 handler": handlers(1)}
    figures = bench.alternate(sides, dict.fromkeys(sides, bench.size(10_000, 2_000)), warm_up=False)
    return Row(
        name=f"{name}, calls of {HANDLERS} no-op handlers an event",
        unit="/s",
        samples=figures[f"{name} {HANDLERS} handlers"],
        peer="calls of 1 handler an event",
        peer_samples=figures[f"{name} 1 handler"],
        note="Calls of handlers in a second on a full queue, EventBus(concurrency=200).",
    )


async def _keep_steps(url: str, steps: int) -> float:
    """Run ``EVENTS`` handlers side by side with ``steps`` steps each, and return the steps in a second."""
    bus, began, left = EventBus(url, concurrency=EVENTS), asyncio.Event(), EVENTS
    started = 0.0

    async def handler(_event: Event, ctx: Context) -> None:
        nonlocal left, started
        left -= 1
        if not left:
            started = perf_counter()  # only now all of them run side by side
            began.set()
        await began.wait()
        for number in range(steps):
            await ctx.step("step", _double, number)

    bus.subscribe("bench.steps", handler, id="handler", timeout=None)
    await bus.start()
    handles = [bus.emit("bench.steps", {"n": number}) for number in range(EVENTS)]
    await asyncio.gather(*(handle.completed() for handle in handles))
    rate = EVENTS * steps / (perf_counter() - started)
    await bus.shutdown()
    return rate


async def _resume(url: str, count: int) -> list[float]:
    """Fail each handler once after its steps, and measure how long its second attempt takes to pass them."""
    bus = EventBus(url, retry={"base_delay": 0.001, "max_delay": 0.001})
    samples: list[float] = []

    async def handler(_event: Event, ctx: Context) -> None:
        started = perf_counter()
        for number in range(MEMOS):
            await ctx.step("step", _double, number)
        if ctx.attempt == 1:
            raise TransientError("again")
        samples.append((perf_counter() - started) * 1000)

    bus.subscribe("bench.resume", handler, id="handler", breaker=False)
    await bus.start()
    for number in range(count):
        await bus.publish("bench.resume", {"n": number})
    await bus.shutdown()
    return samples


async def _drain(url: str, count: int, handlers: int) -> float:
    """Return the calls of handlers in a second while a full queue is drained."""
    store = await open_store(url)
    await store.add_events([new_event("bench.event", {"n": number}) for number in range(count)])
    bus, left, empty = EventBus(store, concurrency=200), count * handlers, asyncio.Event()

    async def handler(_event: Event) -> None:
        nonlocal left
        left -= 1
        if not left:
            empty.set()

    for number in range(handlers):
        bus.subscribe("bench.event", handler, id=f"handler-{number}")
    started = perf_counter()
    await bus.start()
    await empty.wait()
    rate = count * handlers / (perf_counter() - started)
    await bus.shutdown()
    await store.close()
    return rate


def _double(number: int) -> int:
    return 2 * number
