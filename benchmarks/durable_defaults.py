"""The performance table of the design document for `EventBus`, on SQLite with its durable defaults."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from benchmarks import raw
from benchmarks.bench import Bench, percentile, same_gc, sqlite_url
from benchmarks.processes import Child
from benchmarks.recovery import STUCK, kill_row
from benchmarks.results import Row, Target
from benchmarks.runtime import Files
from durabus import DLQInspector, Event, EventBus, EventQueue, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Fail

PUBLISHERS = 16
PAUSE = 0.01
DEAD = 10_000
STUCK_LEASE = 0.05


def run(bench: Bench) -> Iterator[Row]:
    yield _publish_row(bench, "EventQueue.publish, one publisher", _publish, "On the disk when it returns.")
    yield _publish_row(
        bench,
        f"EventBus.publish, {PUBLISHERS} publishers",
        _publish_dispatched,
        "Returns when the event was dispatched and settled, with a no-op handler in the same process.",
    )
    yield _publish_row(
        bench,
        "EventBus.publish, sequential",
        _publish_one_by_one,
        "As above, each awaited before the next: a commit for the event, one for its claim, one for its end.",
    )
    yield _latency_row(bench, "dispatch latency p99, same process", "EventBus.emit", _latency_here)
    yield _latency_row(
        bench, "dispatch latency p99, worker in another process", "EventQueue.publish here", _latency_there
    )
    yield _dead_letters_row(bench)
    yield _recovery_row(bench)
    with bench.fresh_folder() as folder:
        yield kill_row(bench, "", Files(folder).fresh, 500)


def _publish_row(bench: Bench, name: str, publish: Callable[[Path, int], Coroutine[Any, Any, float]], note: str) -> Row:
    def side(count: int) -> float:
        with bench.fresh_folder() as folder:
            return count / asyncio.run(publish(folder / "bus.db", count))

    count = bench.size(3_000, 320)
    return Row(
        name=name,
        unit="/s",
        samples=bench.alternate({name: side}, {name: count})[name],
        target=Target("value", ">", 1_000),
        note=note,
    )


def _latency_row(
    bench: Bench, name: str, call: str, measure: Callable[[Path, int], Coroutine[Any, Any, list[float]]]
) -> Row:
    bench.say(name)
    count = bench.size(1_000, 150)
    with bench.fresh_folder() as folder, same_gc():
        disk = syncs(folder / "syncs", count)
        seconds = asyncio.run(measure(folder / "bus.db", count))
    return latency_row(name, call, seconds, disk)


def syncs(path: Path, count: int) -> list[float]:
    """Return the seconds that the disk takes to sync one page, at the pace of the events: no publish can be faster."""
    seconds: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            sleep(PAUSE)
            file.write(bytes(4096))
            started = perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(perf_counter() - started)
    return seconds


def latency_row(name: str, call: str, seconds: list[float], disk: list[float]) -> Row:
    samples = [one * 1000 for one in seconds]
    middle, worst = percentile(samples, 0.5), max(samples)
    return Row(
        name=name,
        unit="ms",
        samples=samples,
        figure=percentile(samples, 0.99),
        peer="one fdatasync, p99",
        peer_figure=percentile([one * 1000 for one in disk], 0.99),
        target=Target("value", "<", 10),
        note=(
            f"From the call of {call} to the start of the handler, the commit to disk included, on an idle started "
            f"bus; {len(samples):,} events about {PAUSE * 1000:g} ms apart; p50 {middle:.2f} ms, worst {worst:.2f} ms."
        ),
    )


def _dead_letters_row(bench: Bench) -> Row:
    bench.say("making dead letters")
    with bench.fresh_folder() as folder, same_gc():
        samples = asyncio.run(_list_dead_letters(folder / "bus.db", bench.size(200, 30)))
    return Row(
        name=f"DLQ list of 100 among {DEAD:,}",
        unit="ms",
        samples=samples,
        target=Target("value", "<", 50),
        note=f"DLQInspector.list() with its total; worst of {len(samples)} calls {max(samples):.1f} ms.",
    )


def _recovery_row(bench: Bench) -> Row:
    name = f"recovery of {STUCK} stuck events"

    def side(_count: int) -> float:
        with bench.fresh_folder() as folder:
            return asyncio.run(_recover(folder / "bus.db")) * 1000

    return Row(
        name=name,
        unit="ms",
        samples=bench.alternate({name: side}, {name: STUCK}, warm_up=False)[name],
        target=Target("value", "<", 500),
        note="From bus.start() on the file of a dead worker, leases over, until the last of them was handled again.",
    )


async def _publish(path: Path, count: int) -> float:
    store = await open_store(sqlite_url(path))
    queue = EventQueue(store)
    started = perf_counter()
    for _ in range(count):
        await queue.publish(raw.EVENT_TYPE, raw.PAYLOAD)
    seconds = perf_counter() - started
    await store.close()
    return seconds


async def _publish_one_by_one(path: Path, count: int) -> float:
    return await _publish_dispatched(path, count, publishers=1)


async def _publish_dispatched(path: Path, count: int, publishers: int = PUBLISHERS) -> float:
    async def handler(_event: Event) -> None:
        """Handle an event: do nothing."""

    async def publisher(bus: EventBus) -> None:
        for _ in range(count // publishers):
            await bus.publish(raw.EVENT_TYPE, raw.PAYLOAD)

    bus = EventBus(sqlite_url(path))
    bus.subscribe(raw.EVENT_TYPE, handler)
    async with bus:
        started = perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(publishers):
                group.create_task(publisher(bus))
        return (perf_counter() - started) * count / (count // publishers * publishers)


async def _latency_here(path: Path, count: int) -> list[float]:
    seconds: list[float] = []
    heard = asyncio.Event()

    async def handler(event: Event) -> None:
        seconds.append(monotonic() - event.payload["sent"])
        heard.set()

    bus = EventBus(sqlite_url(path))
    bus.subscribe("bench.ping", handler)
    async with bus:
        await asyncio.sleep(0.2)
        for _ in range(count):
            heard.clear()
            _ = bus.emit("bench.ping", {"sent": monotonic()})
            await heard.wait()
            await asyncio.sleep(PAUSE)
    return seconds


async def _latency_there(path: Path, count: int) -> list[float]:
    return await latency_in_another_process(sqlite_url(path), count)


async def latency_in_another_process(url: str, count: int) -> list[float]:
    """Return the seconds from each publish here to the start of the handler in the other process."""
    store = await open_store(url)
    queue = EventQueue(store)
    with Child("latency", url) as child:
        await asyncio.to_thread(child.wait_until_ready)
        child.go()
        for _ in range(count):
            await queue.publish("bench.ping", {"sent": monotonic()})
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(0.5)
        seconds: list[float] = await asyncio.to_thread(child.stop)
    await store.close()
    assert len(seconds) == count
    return seconds


async def _list_dead_letters(path: Path, calls: int) -> list[float]:
    store = await open_store(sqlite_url(path))
    queue = EventQueue(store)
    await queue.publish_batch([new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(DEAD)])
    for _ in range(DEAD // 1_000):
        request = ClaimRequest(bus=queue.bus, worker_id="bench", token=new_token(), limit=1_000)
        claims = await store.claim_next_events(request)
        await store.settle_events([Fail(claim.ref, "ConnectionError: no route to host", None) for claim in claims])
    inspector, samples = DLQInspector(store), []
    for _ in range(calls):
        started = perf_counter()
        page = await inspector.list()
        samples.append((perf_counter() - started) * 1000)
        assert (page.total, len(page.events)) == (DEAD, 100)
    await store.close()
    return samples


async def _recover(path: Path) -> float:
    """Let a worker claim everything and die, then start another one after the leases are over."""
    store = await open_store(sqlite_url(path))
    queue = EventQueue(store)
    await queue.publish_batch([new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(STUCK)])
    claims = await store.claim_next_events(
        ClaimRequest(bus=queue.bus, worker_id="dead", token=new_token(), limit=STUCK, lease=STUCK_LEASE)
    )
    assert len(claims) == STUCK
    await store.close()
    await asyncio.sleep(2 * STUCK_LEASE)
    handled, done = set[int](), asyncio.Event()

    async def handler(event: Event) -> None:
        handled.add(event.id)
        if len(handled) == STUCK:
            done.set()

    bus = EventBus(sqlite_url(path))
    bus.subscribe(raw.EVENT_TYPE, handler)
    started = perf_counter()
    async with bus:
        await done.wait()
        return perf_counter() - started
