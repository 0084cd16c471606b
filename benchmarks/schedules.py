"""Schedules: how soon a tick is handled after its slot, and what thousands of schedules cost an idle fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime
from statistics import median

from benchmarks.bench import Bench, Fresh, percentile
from benchmarks.databases import postgresql
from benchmarks.results import Row, Target
from benchmarks.runtime import Files
from durabus import Event, EventBus, open_store

EVERY = 0.25
PUT_AT_ONCE = 100
SETTLING = 3.0
"""Seconds after the start of the fleet that do not count as idle."""


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_folder() as folder, postgresql(folder) as databases:
        for name, fresh in (("SQLite", Files(folder).fresh), ("PostgreSQL", databases.fresh)):
            yield _latency_row(bench, name, fresh)
            yield _idle_row(bench, name, fresh)


def _latency_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    label = f"{name}, from the slot of a schedule to its handler"
    bench.say(label)
    with fresh() as url:
        samples = asyncio.run(_latencies(url, bench.size(400, 40)))
    return Row(
        name=label,
        unit="ms",
        samples=samples,
        figure=percentile(samples, 0.99),
        target=Target("value", "<", 250),
        note=(
            f"Two nodes, a schedule every {EVERY:g} s, the p99 of {len(samples)} ticks; p50 "
            f"{percentile(samples, 0.5):.1f} ms, worst {max(samples):.1f} ms. The step that publishes the tick and the "
            "commit to disk are included."
        ),
    )


def _idle_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    count = bench.size(10_000, 500)
    label = f"{name}, CPU that {count:,} schedules cost two idle nodes"
    bench.say(label)
    with fresh() as url:
        without = asyncio.run(_idle(url, 0, bench.size(20, 5)))
    with fresh() as url:
        samples = asyncio.run(_idle(url, count, bench.size(20, 5)))
    return Row(
        name=label,
        unit="ms",
        samples=samples,
        figure=max(median(samples) - median(without), 0.0),
        peer="the nodes without schedules",
        peer_figure=median(without),
        target=Target("value", "<", 10),
        note="CPU time of the process in a second: 10 ms are 1 % of a core. That of a server is left out.",
    )


async def _latencies(url: str, count: int) -> list[float]:
    samples: list[float] = []

    async def handle(event: Event) -> None:
        slot = datetime.fromisoformat(event.metadata["schedule_slot"])
        samples.append((time.time() - slot.timestamp()) * 1000)

    store, other = await open_store(url), await open_store(url)
    buses = [EventBus(store), EventBus(other)]
    for bus in buses:
        bus.subscribe("bench.tick", handle, id="tick")
        await bus.start()
    await buses[0].schedules.put("bench", EVERY, "bench.tick", overlap="parallel", catch_up="all")
    while len(samples) < count:  # noqa: ASYNC110  (whole ticks are waited for)
        await asyncio.sleep(EVERY)
    for bus in buses:
        await bus.shutdown()
    await store.close()
    await other.close()
    return samples[:count]


async def _idle(url: str, schedules: int, seconds: int) -> list[float]:
    store, other = await open_store(url), await open_store(url)
    buses = [EventBus(store), EventBus(other)]
    of_bus = buses[0].schedules
    for first in range(0, schedules, PUT_AT_ONCE):
        numbers = range(first, min(first + PUT_AT_ONCE, schedules))
        await asyncio.gather(*(of_bus.put(f"s{n}", "0 3 1 1 *", "bench.tick", tz="Europe/Oslo") for n in numbers))
    for bus in buses:
        bus.subscribe("bench.tick", lambda _event: None, id="tick")
        await bus.start()
    await asyncio.sleep(SETTLING)
    samples: list[float] = []
    for _ in range(seconds):
        began = time.process_time()
        await asyncio.sleep(1.0)
        samples.append((time.process_time() - began) * 1000)
    for bus in buses:
        await bus.shutdown()
    await store.close()
    await other.close()
    return samples
