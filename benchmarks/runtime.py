"""The runtime on top of the stores: serial modes, ordering keys, and idle buses by the hundred thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from benchmarks.bench import Bench, Fresh, sqlite_url
from benchmarks.databases import postgresql
from benchmarks.results import Row, Target
from durabus import Event, EventBus, EventStore, new_event, open_store
from durabus.model.handler import HandlerInfo

KEYS = 1_000
WORKERS = 2
AT_ONCE = 500


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_folder() as folder, postgresql(folder) as databases:
        files = Files(folder)
        for name, fresh in (("SQLite", files.fresh), ("PostgreSQL", databases.fresh)):
            yield _serial_row(bench, name, fresh)
            yield _keys_row(bench, name, fresh)
            yield _idle_row(bench, name, fresh)


class Files:
    """A new SQLite file for every run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    @contextmanager
    def fresh(self) -> Iterator[str]:
        self._number += 1
        path = self._folder / f"runtime{self._number}.db"
        yield sqlite_url(path)
        for part in self._folder.glob(f"{path.name}*"):
            part.unlink()


def _serial_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    def serial(count: int) -> float:
        with fresh() as url:
            return asyncio.run(_drain(url, count, workers=1, mode="bus-serial"))

    def commits(count: int) -> float:
        with fresh() as url:
            return asyncio.run(_publish_one_by_one(url, count))

    sides = {f"{name} bus-serial": serial, f"{name} publish": commits}
    figures = bench.alternate(sides, dict.fromkeys(sides, bench.size(5_000, 300)), warm_up=False)
    return Row(
        name=f"{name}, one bus-serial bus",
        unit="/s",
        samples=figures[f"{name} bus-serial"],
        peer="publish one by one",
        peer_samples=figures[f"{name} publish"],
        target=Target("value", "≥", 1_500),
        note=(
            "A no-op handler on a full queue. One claim brings several events under the lock of the bus, which run one "
            "after the other and are settled with the claim of the next ones in one commit; publishing one by one is "
            "what a commit an event costs here."
        ),
    )


def _keys_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    def drain(keys: int) -> Callable[[int], float]:
        def run(count: int) -> float:
            with fresh() as url:
                return asyncio.run(_drain(url, count, workers=WORKERS, keys=keys))

        return run

    sides = {f"{name} keys": drain(KEYS), f"{name} no keys": drain(0)}
    figures = bench.alternate(sides, dict.fromkeys(sides, bench.size(20_000, 3_000)), warm_up=False)
    return Row(
        name=f"{name}, {KEYS:,} ordering keys on {WORKERS} workers",
        unit="/s",
        samples=figures[f"{name} keys"],
        peer="without keys",
        peer_samples=figures[f"{name} no keys"],
        target=Target("ratio", "≥", 0.5),
        note=f"{WORKERS} EventBus(concurrency=200) in one process, a no-op handler, a full queue, keys in turn.",
    )


def _idle_row(bench: Bench, name: str, fresh: Fresh) -> Row:
    idle = bench.size(100_000, 2_000)

    def drain(buses: int) -> Callable[[int], float]:
        def run(count: int) -> float:
            with fresh() as url:
                return asyncio.run(_drain(url, count, workers=1, idle=buses))

        return run

    sides = {f"{name} with idle buses": drain(idle), f"{name} alone": drain(0)}
    figures = bench.alternate(sides, dict.fromkeys(sides, bench.size(20_000, 3_000)), warm_up=False)
    return Row(
        name=f"{name}, beside {idle:,} idle buses",
        unit="/s",
        samples=figures[f"{name} with idle buses"],
        peer="no other bus",
        peer_samples=figures[f"{name} alone"],
        target=Target("ratio", "≥", 0.95),
        note="The idle ones are registered with a handler each and have no events.",
    )


async def _drain(url: str, count: int, *, workers: int, mode: str = "parallel", keys: int = 0, idle: int = 0) -> float:
    store = await open_store(url)
    for first in range(0, idle, AT_ONCE):
        await asyncio.gather(*(_register(store, n) for n in range(first, min(first + AT_ONCE, idle))))
    new = [new_event("bench.event", {"n": n}, ordering_key=f"key-{n % keys}" if keys else None) for n in range(count)]
    for first in range(0, count, 5_000):
        await store.add_events(new[first : first + 5_000])
    left, empty = count, asyncio.Event()

    async def handler(_event: Event) -> None:
        nonlocal left
        left -= 1
        if not left:
            empty.set()

    buses = [EventBus(store, mode=mode, concurrency=200) for _ in range(workers)]
    for bus in buses:
        bus.subscribe("bench.event", handler, id="handler")
    started = perf_counter()
    for bus in buses:
        await bus.start()
    await empty.wait()
    rate = count / (perf_counter() - started)
    for bus in buses:
        await bus.shutdown()
    await store.close()
    return rate


async def _register(store: EventStore, number: int) -> None:
    handler = HandlerInfo(handler_id="handler", pattern="*")
    await store.register_handlers(f"idle-{number}", "node", [handler], kept_for=None)


async def _publish_one_by_one(url: str, count: int) -> float:
    store = await open_store(url)
    started = perf_counter()
    for n in range(count):
        await store.add_events([new_event("bench.event", {"n": n})])
    rate = count / (perf_counter() - started)
    await store.close()
    return rate
