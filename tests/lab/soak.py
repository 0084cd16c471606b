"""The soak: a steady load for minutes or hours, with kills, and nothing may grow.

::

    python -m tests.lab.soak sqlite --seconds 3600

The soak watches the memory and the open files of a process that is never killed, and what the store keeps. Caches and
tables may grow during the first half. After it, each value must stay the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import msgspec
from redis.asyncio import Redis
from tests.lab.crew import Crew, Member
from tests.lab.life import Life

from durabus import EventStore, StoreUnavailableError, new_event, open_store
from durabus.clock import monotonic
from durabus.testing.servers.server import make_server

LIVES = (1.5, 2.5)
KEPT = 1000
RATE = 300
SAMPLES = 60
MAY_GROW = {"memory MiB": 1.15, "open files": 1.1, "store": 1.5}
"""The most by which a value may grow from the third quarter to the last, as a factor."""

Size = Callable[[], Awaitable[float]]


class Sample(msgspec.Struct, frozen=True):
    """The watched values at one moment."""

    sizes: dict[str, float]
    completed: int
    waiting: int


async def soak(url: str, folder: Path, seconds: float, size_of_store: Size) -> list[Sample]:
    life = Life(
        host="worker",
        url=url,
        folder=str(folder),
        lease=5.0,
        concurrency=20,
        handler_seconds=0.01,
        recorded=False,
        history=KEPT,
    )
    store = await open_store(url)
    crew = Crew(life, 3, lives=LIVES, skew=0.0, disturbed=lambda _line: None, rng=random.Random(1))
    watched = crew.members[0]
    watched.spared = True
    samples: list[Sample] = []
    try:
        await crew.all_up()
        publishing = asyncio.create_task(_publish(store))
        began = monotonic()
        while (now := monotonic() - began) < seconds:
            await asyncio.sleep(0.05)
            crew.replace_the_dead()
            crew.kill_the_old()
            if now >= len(samples) * seconds / SAMPLES:
                samples.append(await _sample(store, watched, size_of_store))
                _say(f"{now:6.0f} s, {crew.counts['kills']} kills: {_text(samples[-1])}")
            if publishing.done():
                publishing.result()
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await crew.stop()
        return samples
    finally:
        crew.end()
        await store.close()


async def _publish(store: EventStore) -> None:
    while True:
        batch = [new_event("lab.works", {"n": n}) for n in range(RATE // 10)]
        try:
            await store.add_events(batch)
        except StoreUnavailableError:
            continue
        await asyncio.sleep(0.1)


async def _sample(store: EventStore, watched: Member, size_of_store: Size) -> Sample:
    process = Path("/proc", str(watched.pid))
    pages = int((process / "statm").read_text().split()[1])
    counts = await store.counts()
    return Sample(
        {
            "memory MiB": round(pages * 4096 / 2**20, 1),
            "open files": len(list((process / "fd").iterdir())),
            "store": await size_of_store(),
        },
        counts.completed,
        counts.pending + counts.processing,
    )


def grown(samples: list[Sample]) -> list[str]:
    """Return the values that have grown."""
    third, last = samples[len(samples) // 2 : len(samples) * 3 // 4], samples[len(samples) * 3 // 4 :]
    found: list[str] = []
    for name, most in MAY_GROW.items():
        before, after = (median(sample.sizes[name] for sample in part) for part in (third, last))
        if after > before * most + 1:
            found.append(f"{name} grew from {before:g} to {after:g}, more than {most:g} times")
    return found


def _file_size(folder: Path) -> Size:
    def now() -> float:
        return sum(path.stat().st_size for path in folder.glob("soak.db*")) / 2**20

    return lambda: asyncio.to_thread(now)


def _schema_size(url: str) -> Size:
    async def size() -> float:
        connection: Any = await asyncpg.connect(url)
        try:
            found = await connection.fetchval(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                "WHERE relnamespace = 'durabus'::regnamespace AND relkind = 'r'"
            )
        finally:
            await connection.close()
        return float(found) / 2**20

    return size


def _number_of_keys(url: str) -> Size:
    async def size() -> float:
        async with Redis.from_url(url) as server:
            return float(await server.dbsize())

    return size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.soak", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=["sqlite", "postgresql", "redis"])
    parser.add_argument("--seconds", type=float, default=120.0)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="durabus-soak-")))
        if chosen.kind == "sqlite":
            url, size = f"sqlite:///{folder}/soak.db", _file_size(folder)
        else:
            server = stack.enter_context(make_server(chosen.kind, folder / chosen.kind))
            url = server.url
            size = _schema_size(url) if chosen.kind == "postgresql" else _number_of_keys(url)
        found = grown(asyncio.run(soak(url, folder, chosen.seconds, size)))
    for line in found:
        _say(line)
    _say("nothing grew" if not found else "something grew")
    return bool(found)


def _text(sample: Sample) -> str:
    sizes = ", ".join(f"{name} {size:.1f}" for name, size in sample.sizes.items())
    return f"{sizes}, completed kept {sample.completed:,}, waiting {sample.waiting:,}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (the report)


if __name__ == "__main__":
    sys.exit(main())
