"""Buses that come and go by the hundred thousand: what they leave behind, and what the next one pays for it."""

from __future__ import annotations

import asyncio
import sys
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

AT_ONCE = 64
"""So many live at the same time."""
FEW = 10
ARCHIVE_AFTER = 60.0
"""Seconds for which a bus is remembered, as a user with such short-lived buses would set it."""
LOOKS = 100
"""How often the run measures the store and the process, at equal distances."""
PENDING = 50
ROUNDS = 10
CLAIMS = 20
Size = Callable[[str], float]


class Look(msgspec.Struct):
    """The measurements of one moment."""

    memory: float
    size: float


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_folder() as folder:
        urls = [sqlite_url(folder / name) for name in ("few.db", "many.db")]
        yield from _rows(bench, "SQLite", urls, _file_mib)
    with (
        bench.fresh_folder() as folder,
        postgresql(folder) as databases,
        databases.fresh() as few,
        databases.fresh() as many,
    ):
        yield from _rows(bench, "PostgreSQL", [few, many], _database_mib)


def _rows(bench: Bench, name: str, urls: list[str], size: Size) -> Iterator[Row]:
    count = bench.size(1_000_000, 1_000)
    few, many = urls
    looks: list[Look] = []

    def look(done: int) -> None:
        looks.append(Look(resident_mib(), size(many)))
        rate = done / (perf_counter() - started)
        _tell(
            bench,
            f"{name}: {done:,} of {count:,} buses, {rate:.0f}/s, memory {looks[-1].memory:.0f} MiB, "
            f"store {looks[-1].size:.0f} MiB",
        )

    with same_gc():
        asyncio.run(_live(few, FEW, FEW, lambda _done: None))
        started = perf_counter()
        asyncio.run(_live(many, count, count // LOOKS, look))
        rate = count / (perf_counter() - started)
        claims = asyncio.run(_claim_in_turn(urls))
    yield Row(
        name=f"{name}, {count:,} buses used once and stopped",
        unit="/s",
        samples=[rate],
        note=(
            f"Made, subscribed, started, one event, shut down; {AT_ONCE} at a time. max_history_size=0, "
            f"archive_after={ARCHIVE_AFTER:g}."
        ),
    )
    yield Row(
        name=f"{name}, claim of 1 after {count:,} buses",
        unit="ms",
        samples=claims[1],
        peer=f"after {FEW}",
        peer_samples=claims[0],
        target=Target("ratio", "≤", 1.5),
        note="claim_next_events on a bus with some pending events, commit included; p50; in turn on two databases.",
    )
    tenth = len(looks) // 10
    before, after = looks[tenth : 2 * tenth], looks[-tenth:]
    for what, found, earlier in (
        ("memory of the process", [one.memory for one in after], [one.memory for one in before]),
        ("the store", [one.size for one in after], [one.size for one in before]),
    ):
        yield Row(
            name=f"{name}, {what} at most in the last tenth of {count:,} buses",
            unit="MiB",
            samples=found,
            figure=max(found),
            peer="in the second tenth of them",
            peer_samples=earlier,
            peer_figure=max(earlier),
            target=Target("ratio", "≤", 1.1),
            note="The file with its WAL, or the whole database." if what == "the store" else "Resident memory.",
        )


def _tell(bench: Bench, text: str) -> None:
    """Show a text in the progress bar on a terminal, or as a line of its own in a log."""
    bench.say(text)
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


async def _claim_in_turn(urls: list[str]) -> list[list[float]]:
    """Claim in turn on both stores, so that other work on the machine slows both alike."""
    for url in urls:
        store = await open_store(url)
        await store.add_events([new_event("bench.event") for _ in range(PENDING)])
        await store.close()
    found: list[list[float]] = [[] for _ in urls]
    for _ in range(ROUNDS):
        for samples, url in zip(found, urls, strict=True):
            samples.extend(await claim_milliseconds(url, CLAIMS))
    return found


async def _live(url: str, count: int, every: int, look: Callable[[int], None]) -> None:
    """Start and stop ``count`` buses, ``LANES`` at a time. Call ``look`` after each ``every`` of them."""
    store = await open_store(url)
    numbers = iter(range(count))
    done = 0

    async def live_in_turn() -> None:
        nonlocal done
        for _ in numbers:
            await _live_once(store)
            done += 1
            if done % every == 0:
                look(done)

    await asyncio.gather(*(live_in_turn() for _ in range(min(AT_ONCE, count))))
    await store.close()


async def _live_once(store: EventStore) -> None:
    name = f"bus-{uuid4().hex}"
    async with EventBus(store, name=name, max_history_size=0, archive_after=ARCHIVE_AFTER) as bus:
        bus.subscribe("bench.event", _nothing)
        await bus.publish("bench.event")


async def _nothing(_event: Event) -> None:
    """Handle an event: do nothing."""


def _file_mib(url: str) -> float:
    path = Path(url.removeprefix("sqlite:///"))
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*")) / 2**20


def _database_mib(url: str) -> float:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return float(row[0]) / 2**20
