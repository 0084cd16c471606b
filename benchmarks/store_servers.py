"""Redis, NATS and Kafka against raw loops on the same drivers: publishing, draining, a claim, recovery, a start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from time import monotonic, perf_counter
from typing import NamedTuple
from uuid import uuid4

from benchmarks import raw, raw_redis, raw_replicated
from benchmarks.bench import Bench, same_gc
from benchmarks.draining import fill
from benchmarks.growth import claim_milliseconds
from benchmarks.processes import Child
from benchmarks.recovery import kill_row
from benchmarks.results import Row, Target
from durabus import EventQueue, new_event, open_store
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.testing.servers.server import make_server

BATCH = 1_000
REDIS_RAW = "raw script: complete 100 and claim 100"
REPLICATED_RAW = "replicated loop: append, read back, apply, 100 claimed, then completed"
SETTINGS = "Valkey with appendfsync=everysec, NATS and Kafka with their defaults, one server each, on this machine"


class Kind(NamedTuple):
    """What differs between the servers."""

    name: str
    title: str
    raw: str
    fill_raw: Callable[[str, str, int], None]


def _fill_raw_redis(url: str, _name: str, count: int) -> None:
    raw_redis.fill(url, count)


def _fill_raw_log(url: str, name: str, count: int) -> None:
    asyncio.run(raw_replicated.fill(url, name, count))


REDIS = Kind("redis", "Redis", REDIS_RAW, _fill_raw_redis)
NATS = Kind("nats", "NATS", REPLICATED_RAW, _fill_raw_log)
KAFKA = Kind("kafka", "Kafka", REPLICATED_RAW, _fill_raw_log)


def run_redis(bench: Bench) -> Iterator[Row]:
    yield from _run(bench, REDIS)


def run_nats(bench: Bench) -> Iterator[Row]:
    yield from _run(bench, NATS)


def run_kafka(bench: Bench) -> Iterator[Row]:
    yield from _run(bench, KAFKA)


def run_nats_start(bench: Bench) -> Iterator[Row]:
    yield from _run_start(bench, NATS)


def run_kafka_start(bench: Bench) -> Iterator[Row]:
    yield from _run_start(bench, KAFKA)


def _run_start(bench: Bench, kind: Kind) -> Iterator[Row]:
    """Measure the start of a node. This is a group of its own, because it publishes a million events first."""
    with bench.fresh_folder() as folder, make_server(kind.name, folder / kind.name) as server:
        yield _start_row(bench, kind, server.url)


def _run(bench: Bench, kind: Kind) -> Iterator[Row]:
    with bench.fresh_folder() as folder, make_server(kind.name, folder / kind.name) as server:
        yield _publish_row(bench, kind, server.url)
        yield from _drain_rows(bench, kind, server.url)
        yield _claim_row(bench, kind, server.url)
        yield kill_row(bench, kind.title, lambda: nullcontext(fresh(server.url)), 3_000)


def fresh(url: str) -> str:
    """Return the URL of a new store on the same server."""
    return f"{url}?prefix=b{uuid4().hex}"


def _publish_row(bench: Bench, kind: Kind, url: str) -> Row:
    count = bench.size(50_000, 5_000)

    async def publish(number: int) -> float:
        store = await open_store(fresh(url))
        queue = EventQueue(store)
        batches = [[new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(BATCH)] for _ in range(number // BATCH)]
        started = perf_counter()
        for batch in batches:
            await queue.publish_batch(batch)
        seconds = perf_counter() - started
        await store.close()
        return number / seconds

    name = f"{kind.title} publish_batch, {BATCH:,} a batch"
    samples = bench.alternate({name: lambda number: asyncio.run(publish(number))}, {name: count}, warm_up=False)[name]
    note = "EventQueue.publish_batch awaited one by one, events made before the clock runs."
    return Row(name=name, unit="/s", samples=samples, note=note)


def _drain_rows(bench: Bench, kind: Kind, url: str) -> list[Row]:
    count = bench.size(50_000, 3_000)

    def ours(processes: int) -> float:
        place = fresh(url)
        fill(place, count)
        asyncio.run(_snapshot(place))
        return count / _drain("drain-to-end", [place], count, processes)

    def theirs(processes: int) -> float:
        name = f"r{uuid4().hex}"
        kind.fill_raw(url, name, count)
        return count / _drain(f"drain-raw-{kind.name}", [url, name, str(count)], count, processes)

    sides = {
        "drain, 1 process": lambda _: ours(1),
        "raw, 1 process": lambda _: theirs(1),
        "drain, 2 processes": lambda _: ours(2),
        "raw, 2 processes": lambda _: theirs(2),
    }
    figures = bench.alternate(sides, dict.fromkeys(sides, count), warm_up=False)  # every run is its own process
    return [
        Row(
            name=f"{kind.title} drain, {processes}",
            unit="/s",
            samples=figures[f"drain, {processes}"],
            peer=f"{kind.raw}, {processes}",
            peer_samples=figures[f"raw, {processes}"],
            target=Target("ratio", "≥", 0.40),
            note=(
                "EventBus(concurrency=200) and a no-op async handler on a full queue, until the store says that it is "
                "empty. The raw loop calls no handler and logs no claims."
            ),
        )
        for processes in ("1 process", "2 processes")
    ]


def _drain(kind: str, arguments: list[str], count: int, processes: int) -> float:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(kind, *arguments)) for _ in range(processes)]
        for child in children:
            child.wait_until_ready()
        started = monotonic()
        for child in children:
            child.go()
        found = [child.found() for child in children]  # how many, and when it saw that nothing was left
        handled = sum(number for number, _ in found)
        assert handled == count, f"{kind}: {handled} handled of {count}"
        return float(max(at for _, at in found) - started)


async def _snapshot(place: str) -> None:
    """Make a snapshot after filling a broker, so that no run pays for one."""
    store = await open_store(f"{place}&timeout=600")
    if isinstance(store, ReplicatedLogStore):
        while not await store.snapshot():  # noqa: ASYNC110  (the node is at it by itself)
            await asyncio.sleep(0.1)
    await store.close()


def _claim_row(bench: Bench, kind: Kind, url: str) -> Row:
    name = f"{kind.title} claim of 1, p50"
    bench.say(name)
    place = fresh(url)
    fill(place, 1_000)
    with same_gc():
        samples = asyncio.run(claim_milliseconds(place, bench.size(500, 50)))
    note = "claim_next_events alone, one after the other; the event goes back outside the clock."
    return Row(name=name, unit="ms", samples=samples, target=Target("value", "<", 5.0), note=note)


def _start_row(bench: Bench, kind: Kind, url: str) -> Row:
    count = bench.size(1_000_000, 20_000)
    name = f"{kind.title}, start of a node with {count:,} live events"
    bench.say(name)
    place = fresh(url)
    fill(place, count)

    async def start() -> float:
        started = perf_counter()
        store = await open_store(place)
        milliseconds = (perf_counter() - started) * 1000
        assert (await store.counts()).pending == count
        await store.close()
        return milliseconds

    asyncio.run(_snapshot(place))
    samples = []
    for _ in range(bench.size(3, 1)):
        with same_gc():
            samples.append(asyncio.run(start()))
    return Row(
        name=name,
        unit="ms",
        samples=samples,
        target=Target("value", "<", 10_000.0),
        note="open_store on a prefix whose snapshot is newer than its last event, until it returns.",
    )
