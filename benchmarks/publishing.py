"""Publishing with durabus into any store; and into SQLite with its durable defaults, against the raw insert loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

from benchmarks import raw
from benchmarks.bench import Bench, sqlite_url
from benchmarks.results import Row, Target
from durabus import EventQueue, new_event, open_store
from durabus.store.contract import EventStore

PUBLISHERS = 64
BATCH = 1_000


def run(bench: Bench) -> list[Row]:
    ours, crowd, batched = Publishing(_Files(bench).fresh), bench.size(20_000, 3_200), bench.size(50_000, 10_000)
    theirs, count = _Raw(bench), bench.size(3_000, 400)
    one = bench.alternate(
        {"publish one by one": ours.single, "raw insert+commit": theirs.single, "64 publishers": ours.crowd},
        {"publish one by one": count, "raw insert+commit": count, "64 publishers": crowd},
    )
    many = bench.alternate(
        {"publish_batch": ours.batches, "raw executemany": theirs.batches},
        {"publish_batch": batched, "raw executemany": batched},
    )
    return [
        Row(
            name="publish, one publisher",
            unit="/s",
            samples=one["publish one by one"],
            peer="raw insert + commit",
            peer_samples=one["raw insert+commit"],
            target=Target("ratio", "≥", 0.70),
            note=(
                "EventQueue.publish awaited one by one; each is on the disk when it returns. durabus also writes the "
                "PUBLISHED entry and the event_id for deduplication; the raw loop writes the events row alone, from "
                "rows made before the clock runs."
            ),
        ),
        Row(
            name=f"publish, {PUBLISHERS} publishers",
            unit="/s",
            samples=one["64 publishers"],
            peer="durabus, one publisher",
            peer_samples=one["publish one by one"],
            target=Target("ratio", "≥", 8),
            note="Tasks of one process, each awaiting its own publishes; they share commits.",
        ),
        Row(
            name=f"publish_batch, {BATCH:,} a batch",
            unit="/s",
            samples=many["publish_batch"],
            peer="raw executemany",
            peer_samples=many["raw executemany"],
            target=Target("ratio", "≥", 0.60),
            note=(
                "Events (new_event) and raw rows are made before the clock runs. durabus also writes the PUBLISHED "
                "entry and the event_id, and returns the stored events; the raw loop writes the events row alone."
            ),
        ),
    ]


class Publishing:
    """Publishes with durabus, each run in a store of its own."""

    def __init__(self, fresh: Callable[[], AbstractContextManager[str]]) -> None:
        self._fresh = fresh

    def single(self, count: int) -> float:
        async def publish(queue: EventQueue) -> float:
            started = perf_counter()
            for _ in range(count):
                await queue.publish(raw.EVENT_TYPE, raw.PAYLOAD)
            return perf_counter() - started

        return count / self._on_store(publish, count)

    def crowd(self, count: int) -> float:
        each = max(count // PUBLISHERS, 1)

        async def publisher(queue: EventQueue) -> None:
            for _ in range(each):
                await queue.publish(raw.EVENT_TYPE, raw.PAYLOAD)

        async def publish(queue: EventQueue) -> float:
            started = perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(PUBLISHERS):
                    group.create_task(publisher(queue))
            return perf_counter() - started

        return each * PUBLISHERS / self._on_store(publish, each * PUBLISHERS)

    def batches(self, count: int) -> float:
        async def publish(queue: EventQueue) -> float:
            events = [new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(count)]
            started = perf_counter()
            for first in range(0, count, BATCH):
                await queue.publish_batch(events[first : first + BATCH])
            return perf_counter() - started

        return count / self._on_store(publish, count)

    def _on_store(self, publish: Callable[[EventQueue], Awaitable[float]], count: int) -> float:
        async def measure(url: str) -> float:
            store: EventStore = await open_store(url)
            seconds = await publish(EventQueue(store))
            assert (await store.counts()).pending == count
            await store.close()
            return seconds

        with self._fresh() as url:
            return asyncio.run(measure(url))


class _Files:
    """A new SQLite file for every run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with self._bench.fresh_folder() as folder:
            yield sqlite_url(folder / "bus.db")


class _Raw:
    """Runs the raw loop, each run in a folder of its own."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def single(self, count: int) -> float:
        with self._bench.fresh_folder() as folder:
            return raw.publish_single(folder / "raw.db", count)

    def batches(self, count: int) -> float:
        with self._bench.fresh_folder() as folder:
            return raw.publish_batches(folder / "raw.db", count, BATCH)
