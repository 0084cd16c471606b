"""What runs in another process: a worker of durabus, or the raw loop. Started by ``benchmarks.processes``."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import asyncpg
import msgspec
import redis

from benchmarks import raw, raw_postgresql, raw_redis, raw_replicated
from benchmarks.bench import same_gc
from benchmarks.turns import next_line, ready
from durabus import Event, EventBus, open_store

LOOK_EVERY = 0.01
DRAIN_SLOTS = 200
"""Claims come in halves of this: batches of 100, as in the raw loop."""


async def drain(url: str) -> int:
    """Run a worker with a no-op handler until ``stop``. Returns how many events its handler got."""
    handled = 0

    async def handler(_event: Event) -> None:
        nonlocal handled
        handled += 1

    store = await open_store(url)
    bus = EventBus(store, concurrency=DRAIN_SLOTS)
    bus.subscribe(raw.EVENT_TYPE, handler)
    await ready()
    async with bus:
        await next_line()
    await store.close()
    return handled


async def drain_to_end(url: str) -> tuple[int, float]:
    """Do as ``drain`` until the store says that nothing is left. Returns how many events the handler got, and when."""
    handled = 0

    async def handler(_event: Event) -> None:
        nonlocal handled
        handled += 1

    store = await open_store(url)
    bus = EventBus(store, concurrency=DRAIN_SLOTS)
    bus.subscribe(raw.EVENT_TYPE, handler)
    await ready()
    async with bus:
        counts, before = await store.counts(), -1
        while counts.pending or counts.processing:  # others drain it too
            while before != handled:  # while there is work, looking would only take its time
                before = handled
                await asyncio.sleep(LOOK_EVERY)
            counts, before = await store.counts(), -1
        ended = monotonic()
    await store.close()
    return handled, ended


async def hang(url: str) -> None:
    """Run a worker with its defaults whose handlers never return, until the process is killed."""
    inside = 0
    store = await open_store(url)
    waiting = (await store.counts()).pending
    full = asyncio.Event()

    async def handler(_event: Event) -> None:
        nonlocal inside
        inside += 1
        if inside == waiting:
            full.set()
        await asyncio.Event().wait()

    bus = EventBus(store)
    bus.subscribe(raw.EVENT_TYPE, handler, id="bench")
    async with bus:
        await full.wait()
        await ready()
        await next_line()


async def latency(url: str) -> list[float]:
    """Run an idle worker. Returns the seconds from each publish in the parent to the start of the handler here."""
    seconds: list[float] = []

    async def handler(event: Event) -> None:
        # CLOCK_MONOTONIC is one clock for all processes of a host
        seconds.append(monotonic() - event.payload["sent"])

    async with EventBus(url) as bus:
        bus.subscribe("bench.ping", handler)
        await asyncio.sleep(0.2)
        await ready()
        await next_line()
    return seconds


async def footprint(url: str, total: str) -> list[float]:
    """Run a worker that drains ``total`` events. Returns its resident memory in MiB at each quarter."""
    quarter, handled, found = int(total) // 4, 0, list[float]()
    done = asyncio.Event()

    async def handler(_event: Event) -> None:
        nonlocal handled
        handled += 1
        if handled % quarter == 0:
            found.append(resident_mib())
        if handled == int(total):
            done.set()

    bus = EventBus(url)
    bus.subscribe(raw.EVENT_TYPE, handler)
    await ready()
    async with bus:
        await done.wait()
    return found


async def drain_raw(path: str, shared: str) -> int:
    """Run the raw loop until nothing is left."""
    await ready()
    return raw.drain(Path(path), shared=shared == "shared")


async def drain_raw_postgresql(url: str) -> int:
    """Run the raw loop on PostgreSQL; it connects before the clock runs."""
    connection = await asyncpg.connect(url)
    await ready()
    count = await raw_postgresql.drain(connection)
    await connection.close()
    return count


async def drain_raw_redis(url: str, _name: str, _count: str) -> tuple[int, float]:
    """Run the raw script on Redis."""
    with redis.Redis.from_url(url) as server:
        await ready()
        return raw_redis.drain(server), monotonic()


async def drain_raw_log(url: str, name: str, count: str) -> tuple[int, float]:
    """The replicated loop. It has read the log before the clock runs."""
    process = await raw_replicated.ready(url, name, int(count))
    await ready()
    return await process.drain(), monotonic()


KINDS: dict[str, Callable[..., Awaitable[Any]]] = {
    "drain": drain,
    "drain-raw": drain_raw,
    "drain-raw-kafka": drain_raw_log,
    "drain-raw-nats": drain_raw_log,
    "drain-raw-postgresql": drain_raw_postgresql,
    "drain-raw-redis": drain_raw_redis,
    "drain-to-end": drain_to_end,
    "footprint": footprint,
    "hang": hang,
    "latency": latency,
}


def resident_mib() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except FileNotFoundError:  # no /proc: the peak must do, in bytes on macOS
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    kind, *arguments = sys.argv[1:]

    async def run() -> Any:
        return await KINDS[kind](*arguments)

    with same_gc():
        found = asyncio.run(run())
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
