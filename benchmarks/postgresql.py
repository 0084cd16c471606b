"""PostgreSQL against raw asyncpg loops: publishing, draining, latency, recovery, growth, a transaction left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from time import monotonic, perf_counter, sleep

import asyncpg
import psycopg

from benchmarks import raw, raw_postgresql
from benchmarks.bench import Bench, same_gc
from benchmarks.databases import Databases, postgresql, settle
from benchmarks.draining import LOOK_EVERY, fill
from benchmarks.durable_defaults import latency_in_another_process, latency_row, syncs
from benchmarks.growth import SMALL, claim_rows
from benchmarks.processes import Child
from benchmarks.publishing import BATCH, PUBLISHERS, Publishing
from benchmarks.recovery import kill_row
from benchmarks.results import Row, Target
from durabus import EventQueue, new_event, open_store
from durabus.testing.servers.postgresql import DistributionPostgreSQLServer

UNFINISHED = {
    "drain": "SELECT EXISTS (SELECT FROM durabus.events)",
    "drain-raw-postgresql": "SELECT EXISTS (SELECT FROM raw_events)",
}
LOAD_BATCH = 500
LOAD_BACKLOG = 5_000


def run(bench: Bench) -> Iterator[Row]:
    with bench.fresh_folder() as folder, postgresql(folder) as databases:
        yield from _publish_rows(bench, databases)
        yield from _drain_rows(bench, databases, "PostgreSQL")
        yield _latency_row(bench, databases, "PostgreSQL")
        yield kill_row(bench, "PostgreSQL", databases.fresh, 1_000)
        yield from _claim_rows(bench, databases)
        yield _open_transaction_row(bench, databases)
    if not DistributionPostgreSQLServer.installed():
        bench.say(DistributionPostgreSQLServer.missing())
        return
    # Another version, and one that compiles plans which count as expensive.
    with bench.fresh_folder() as folder, postgresql(folder, DistributionPostgreSQLServer) as databases:
        name = f"the distribution's PostgreSQL {databases.version().partition(' ')[0]}"
        yield from _drain_rows(bench, databases, name)
        yield _latency_row(bench, databases, name)


def _publish_rows(bench: Bench, databases: Databases) -> list[Row]:
    ours, count, batched = Publishing(databases.fresh), bench.size(3_000, 300), bench.size(50_000, 10_000)

    def raw_single(number: int) -> float:
        with databases.fresh() as url:
            return asyncio.run(raw_postgresql.publish_single(url, number))

    def raw_batches(number: int) -> float:
        with databases.fresh() as url:
            return asyncio.run(raw_postgresql.publish_batches(url, number, BATCH))

    one = bench.alternate(
        {"publish": ours.single, "raw insert": raw_single, "64 publishers": ours.crowd},
        {"publish": count, "raw insert": count, "64 publishers": bench.size(20_000, 3_200)},
    )
    many = bench.alternate(
        {"publish_batch": ours.batches, "raw unnest": raw_batches},
        {"publish_batch": batched, "raw unnest": batched},
        warm_up=False,
    )
    return [
        Row(
            name="PostgreSQL publish, one publisher",
            unit="/s",
            samples=one["publish"],
            peer="raw asyncpg insert",
            peer_samples=one["raw insert"],
            target=Target("ratio", "≥", 0.75),
            note=(
                "EventQueue.publish awaited one by one. durabus also writes the PUBLISHED entry and the keys for "
                "deduplication, and wakes workers; the raw loop inserts one row by a prepared statement."
            ),
        ),
        Row(
            name=f"PostgreSQL publish, {PUBLISHERS} publishers",
            unit="/s",
            samples=one["64 publishers"],
            peer="durabus, one publisher",
            peer_samples=one["publish"],
            note="Tasks of one process, each awaiting its own publishes.",
        ),
        Row(
            name=f"PostgreSQL publish_batch, {BATCH:,} a batch",
            unit="/s",
            samples=many["publish_batch"],
            peer="raw asyncpg unnest",
            peer_samples=many["raw unnest"],
            target=Target("ratio", "≥", 0.60),
            note="Events and raw rows are made before the clock runs; the rest as in the row of one publisher.",
        ),
    ]


def _drain_rows(bench: Bench, databases: Databases, server: str) -> list[Row]:
    count = bench.size(50_000, 3_000)
    with databases.fresh() as ours, databases.fresh() as theirs:
        bench.say("filling what is to be drained")
        fill(ours, count)
        asyncio.run(raw_postgresql.fill(theirs, count))
        settle(ours, theirs)

        def side(kind: str, template: str, processes: int) -> float:
            with databases.fresh(template) as url:
                return count / _drain(kind, url, count, processes)

        sides = {
            "drain, 1 process": lambda _: side("drain", ours, 1),
            "raw drain, 1 process": lambda _: side("drain-raw-postgresql", theirs, 1),
            "drain, 2 processes": lambda _: side("drain", ours, 2),
            "raw drain, 2 processes": lambda _: side("drain-raw-postgresql", theirs, 2),
        }
        figures = bench.alternate(sides, dict.fromkeys(sides, count), warm_up=False)  # every run is its own process
    return [
        Row(
            name=f"{server} drain, {processes}",
            unit="/s",
            samples=figures[f"drain, {processes}"],
            peer=f"raw complete + claim, {processes}",
            peer_samples=figures[f"raw drain, {processes}"],
            target=Target("ratio", "≥", 0.50),
            note=(
                "EventBus(concurrency=200) and a no-op async handler on a full queue. The raw loop completes 100 and "
                "claims the next 100 in one statement; it logs the end only, not the claim, and calls no handler. "
                f"From the signal to begin until the queue is empty, seen within {LOOK_EVERY * 1000:g} ms."
            ),
        )
        for processes in ("1 process", "2 processes")
    ]


def _drain(kind: str, url: str, count: int, processes: int) -> float:
    with ExitStack() as stack:
        looking = stack.enter_context(psycopg.connect(url, autocommit=True))
        children = [stack.enter_context(Child(kind, url)) for _ in range(processes)]
        for child in children:
            child.wait_until_ready()
        started = monotonic()
        for child in children:
            child.go()
        while (row := looking.execute(UNFINISHED[kind].encode()).fetchone()) and row[0]:
            if all(child.has_ended() for child in children):
                raise RuntimeError("the draining processes ended before the queue was empty: see their errors")
            sleep(LOOK_EVERY)
        seconds = monotonic() - started
        handled = sum(child.stop() if kind == "drain" else child.found() for child in children)
        assert handled == count, f"{kind}: {handled} handled of {count}"
        return seconds


def _latency_row(bench: Bench, databases: Databases, server: str) -> Row:
    name = f"{server} publish to start p99, worker in another process"
    bench.say(name)
    count = bench.size(1_000, 150)
    with bench.fresh_folder() as folder, databases.fresh() as url, same_gc():
        disk = syncs(folder / "syncs", count)
        seconds = asyncio.run(latency_in_another_process(url, count))
    return latency_row(name, "EventQueue.publish here", seconds, disk)


def _claim_rows(bench: Bench, databases: Databases) -> list[Row]:
    large = bench.size(1_000_000, 20_000)
    with databases.fresh() as full, databases.fresh() as nearly_empty:
        bench.say(f"publishing {large:,} events")
        fill(full, large)
        fill(nearly_empty, SMALL)
        settle(full, nearly_empty)
        return claim_rows(bench, "PostgreSQL claim", [full, nearly_empty], large)


def _open_transaction_row(bench: Bench, databases: Databases) -> Row:
    seconds = bench.size(60, 4)
    free, held = list[float](), list[float]()
    for turn in range(bench.size(2, 1)):
        for figures, holding in ((free, False), (held, True)):
            bench.say(f"load for {seconds} s, {'with' if holding else 'without'} an open transaction: {turn + 1}")
            with databases.fresh() as url, same_gc():
                figures.append(asyncio.run(_load(url, seconds, holding=holding)))
    return Row(
        name=f"PostgreSQL, load while a transaction is open for {seconds} s",
        unit="/s",
        samples=held,
        peer="without it",
        peer_samples=free,
        target=Target("ratio", "≥", 0.65),
        note=(
            f"One process publishes in batches of {LOAD_BATCH} and keeps about {LOAD_BACKLOG:,} waiting, one worker "
            "drains; events completed per second. The transaction has a snapshot and an id, so nothing that dies "
            "while it is open can be vacuumed."
        ),
    )


async def _load(url: str, seconds: float, *, holding: bool) -> float:
    store = await open_store(url)
    queue = EventQueue(store)
    await queue.publish_batch([new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(LOAD_BACKLOG)])
    async with _open_transaction(url, holding=holding):
        with Child("drain", url) as child:
            await asyncio.to_thread(child.wait_until_ready)
            child.go()
            started = perf_counter()
            while perf_counter() - started < seconds:
                if (await store.counts()).pending < LOAD_BACKLOG:
                    await queue.publish_batch([new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(LOAD_BATCH)])
                else:
                    await asyncio.sleep(0.01)
            completed = (await store.counts()).completed
            rate = completed / (perf_counter() - started)
            await asyncio.to_thread(child.stop)
    await store.close()
    return rate


@asynccontextmanager
async def _open_transaction(url: str, *, holding: bool) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    if holding:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT pg_current_xact_id()")
    yield
    await connection.close()
