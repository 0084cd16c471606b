"""Buses that come and go by the hundred thousand: what they leave behind, and what the next one pays for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import msgspec
import psycopg

from benchmarks.bench import Bench, same_gc, sqlite_url
from benchmarks.child import resident_mib
from benchmarks.databases import postgresql
from benchmarks.growth import claim_milliseconds
from benchmarks.results import Row, Target
from durabus import Event, EventBus, EventStore, new_event, open_store

GROUP = "buses"
LANES = 64
"""So many live at the same time."""
FEW = 10
PENDING = 50
Size = Callable[[str], float]


class Sample(msgspec.Struct):
    """How things stand after so many buses."""

    memory: float
    size: float
    claims: list[float]


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_folder() as folder:
        yield from _rows(bench, "SQLite", sqlite_url(folder / "buses.db"), _file_mib)
    with bench.fresh_folder() as folder, postgresql(folder) as databases, databases.fresh() as url:
        yield from _rows(bench, "PostgreSQL", url, _database_mib)


def _rows(bench: Bench, name: str, url: str, size: Size) -> Iterator[Row]:
    count = bench.size(1_000_000, 1_000)
    with same_gc():
        asyncio.run(_live(url, FEW, lambda _done: None))
        few = _look(url, size)
        started = perf_counter()
        asyncio.run(_live(url, count // 10, lambda done: bench.say(f"{name}: {done:,} of {count:,} buses")))
        tenth = _look(url, size)
        asyncio.run(_live(url, count - count // 10, lambda done: bench.say(f"{name}: {count // 10 + done:,} buses")))
        rate = count / (perf_counter() - started)
        all_ = _look(url, size)
    yield Row(
        group=GROUP,
        name=f"{name}, {count:,} buses used once and stopped",
        unit="/s",
        samples=[rate],
        note=f"Made, subscribed, started, one event, shut down; {LANES} at a time. max_history_size=0.",
    )
    yield Row(
        group=GROUP,
        name=f"{name}, claim of 1 after {count:,} buses",
        unit="ms",
        samples=all_.claims,
        peer=f"after {FEW}",
        peer_samples=few.claims,
        target=Target("ratio", "≤", 1.5),
        note="claim_next_events on a bus with some pending events, commit included; p50.",
    )
    for what, after, before in (
        ("memory of the process", all_.memory, tenth.memory),
        ("the store", all_.size, tenth.size),
    ):
        yield Row(
            group=GROUP,
            name=f"{name}, {what} after {count:,} buses",
            unit="MiB",
            samples=[after],
            peer="after a tenth of them",
            peer_figure=before,
            target=Target("ratio", "≤", 1.1),
            note="Resident memory; the file with its WAL, or the whole database." if what == "the store" else "",
        )


def _look(url: str, size: Size) -> Sample:
    claims = asyncio.run(_claim(url))
    return Sample(memory=resident_mib(), size=size(url), claims=claims)


async def _claim(url: str) -> list[float]:
    store = await open_store(url)
    await store.add_events([new_event("bench.event") for _ in range(PENDING)])
    await store.close()
    return await claim_milliseconds(url, 200)


async def _live(url: str, count: int, tell: Callable[[int], None]) -> None:
    store = await open_store(url)
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await _live_once(store)
            if number % 1_000 == 0:
                tell(number)

    await asyncio.gather(*(lane() for _ in range(min(LANES, count))))
    await store.close()


async def _live_once(store: EventStore) -> None:
    async with EventBus(store, name=f"bus-{uuid4().hex}", max_history_size=0) as bus:
        bus.subscribe("bench.event", _nothing)
        await bus.publish("bench.event")


async def _nothing(_event: Event) -> None:
    """The handler."""


def _file_mib(url: str) -> float:
    path = Path(url.removeprefix("sqlite:///"))
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*")) / 2**20


def _database_mib(url: str) -> float:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return float(row[0]) / 2**20
