"""The memory bus against abxbus, in one process and one run."""

from __future__ import annotations

import asyncio
from time import perf_counter

import abxbus  # type: ignore[import-untyped]

from benchmarks.bench import Bench
from benchmarks.results import Row, Target
from durabus import Event, EventBus

SLICE = 400
NOTE = (
    "One no-op async handler, payload {'n': int}. abxbus: history 100 with drop, its other defaults; "
    "durabus: its defaults (history 10,000, log of every transition)."
)


def run(bench: Bench) -> list[Row]:
    many, few = bench.size(40_000, 4_000), bench.size(4_000, 800)
    bulk = bench.alternate(
        {"memory bulk": _durabus_bulk, "abxbus bulk": _abxbus_bulk}, {"memory bulk": many, "abxbus bulk": few}
    )
    single = bench.alternate(
        {"memory one by one": _durabus_single, "abxbus one by one": _abxbus_single},
        {"memory one by one": many // 4, "abxbus one by one": few},
    )
    ours, theirs = bulk["memory bulk"], bulk["abxbus bulk"]
    sliced = f"Emitted in slices of {SLICE}, wait_until_idle after each."
    return [
        Row(
            name="memory bus, bulk",
            unit="/s",
            samples=ours,
            peer="abxbus",
            peer_samples=theirs,
            target=Target("ratio", "≥", 10),
            note=f"{sliced} {NOTE}",
        ),
        Row(
            name="memory bus, bulk, absolute",
            unit="/s",
            samples=ours,
            target=Target("value", "≥", 40_000),
            note="The same runs as the row above; a bound for a quiet machine of the class named on top.",
        ),
        Row(
            name="memory bus, one by one",
            unit="/s",
            samples=single["memory one by one"],
            peer="abxbus",
            peer_samples=single["abxbus one by one"],
            target=Target("ratio", "≥", 10),
            note=f"Each event awaited to its end before the next is emitted. {NOTE}",
        ),
    ]


async def _nothing(_event: Event) -> None:
    """Handle an event: do nothing."""


def _durabus_bulk(count: int) -> float:
    async def measure() -> float:
        async with _bus() as bus:
            started = perf_counter()
            for first in range(0, count, SLICE):
                for n in range(first, first + SLICE):
                    _ = bus.emit("bench.event", {"n": n})
                await bus.wait_until_idle()
            return _rounded_up(count) / (perf_counter() - started)

    return asyncio.run(measure())


def _durabus_single(count: int) -> float:
    async def measure() -> float:
        async with _bus() as bus:
            started = perf_counter()
            for n in range(count):
                await bus.emit("bench.event", {"n": n})
            return count / (perf_counter() - started)

    return asyncio.run(measure())


def _bus() -> EventBus:
    bus = EventBus("memory://")
    bus.subscribe("bench.event", _nothing)
    return bus


class BenchEvent(abxbus.BaseEvent[None]):  # type: ignore[misc]
    """An event of abxbus with the same payload as a field."""

    n: int = 0


async def _nothing_abx(_event: BenchEvent) -> None:
    """Handle an event: do nothing."""


def _abxbus_bulk(count: int) -> float:
    async def measure() -> float:
        bus = _abx_bus()
        started = perf_counter()
        for first in range(0, count, SLICE):
            for n in range(first, first + SLICE):
                bus.emit(BenchEvent(n=n))
            await bus.wait_until_idle()
        rate = _rounded_up(count) / (perf_counter() - started)
        await bus.destroy()
        return rate

    return asyncio.run(measure())


def _abxbus_single(count: int) -> float:
    async def measure() -> float:
        bus = _abx_bus()
        started = perf_counter()
        for n in range(count):
            await bus.emit(BenchEvent(n=n))
        rate = count / (perf_counter() - started)
        await bus.destroy()
        return rate

    return asyncio.run(measure())


def _abx_bus() -> abxbus.EventBus:
    bus = abxbus.EventBus("bench", max_history_size=100, max_history_drop=True)
    bus.on(BenchEvent, _nothing_abx)
    return bus


def _rounded_up(count: int) -> int:
    """Return ``count``, rounded up to whole slices."""
    return -(-count // SLICE) * SLICE
