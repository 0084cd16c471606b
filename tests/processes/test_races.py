"""Real processes on one SQLite file: killed, frozen, racing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.fleet import Fleet, judge

from durabus import EventQueue, EventStore, new_event, open_store

pytestmark = pytest.mark.processes


async def publish(store: EventStore, count: int) -> None:
    queue = EventQueue(store)
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await queue.publish_batch([new_event("race.event", {"number": start + n}) for n in range(size)])


async def drained(store: EventStore, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while True:
            counts = await store.counts()
            if counts.pending + counts.processing == 0:
                return
            await asyncio.sleep(0.2)


@pytest.mark.timeout(180)
async def test_eight_processes_with_a_kill_every_second_end_every_event_once(tmp_path: Path) -> None:
    """20,000 events, kill -9 every second for 30 s, some frozen past their lease: one terminal each, no stale write."""
    events, kills = 20_000, 30
    url = f"sqlite:///{tmp_path}/race.db"
    store = await open_store(url)
    await publish(store, events)
    with Fleet(url, tmp_path / "ledger", handler_seconds=0.1, lease=2.0, concurrency=10) as fleet:
        for _ in range(8):
            fleet.start()
        for second in range(kills):
            await asyncio.sleep(1.0)  # the rhythm of the kills is what is tested
            fleet.kill(fleet.workers[second % 4])
            fleet.start()
            if second % 6 == 3:
                fleet.freeze(fleet.workers[-2], seconds=3.0)
        await asyncio.sleep(3.0)  # until the last frozen worker goes on
        await drained(store, 90)
        await fleet.stop()
        handled = {id_ for id_, _, _ in fleet.lines("end")}
        refused = sum(count for count, _, _ in fleet.lines("refused"))

    verdict, counts = await judge(store), await store.counts()
    print(  # noqa: T201  (shown with -s)
        f"\n{verdict.published} published, {counts.completed} completed, {verdict.takeovers} takeovers after {kills} "
        f"kills, {verdict.retries} retries, {refused} stale writes refused, "
        f"{verdict.stale_writes_accepted} accepted"
    )
    await store.close()
    assert verdict.published == counts.completed == events
    assert len(verdict.terminals) == events
    assert set(verdict.terminals.values()) == {1}
    assert verdict.stale_writes_accepted == 0
    assert verdict.fences_not_rising == 0
    assert len(handled) == events
    assert verdict.takeovers > 0
    assert refused > 0
    assert verdict.retries >= events // 50 * 0.9


async def test_a_worker_frozen_past_its_lease_cannot_write(tmp_path: Path) -> None:
    """SIGSTOP longer than the lease, then SIGCONT: the other worker ends the events, the stale writes are refused."""
    url = f"sqlite:///{tmp_path}/freeze.db"
    store = await open_store(url)
    await publish(store, 20)
    with Fleet(url, tmp_path / "ledger", handler_seconds=0.6, lease=1.0, concurrency=20) as fleet:
        frozen = fleet.start()
        await until(lambda: len(fleet.lines("start")) == 20)
        frozen.send_signal(signal.SIGSTOP)
        second = fleet.start()
        await drained(store, 20)
        frozen.send_signal(signal.SIGCONT)
        await fleet.stop()
        refused = sum(count for count, _, pid in fleet.lines("refused") if pid == frozen.pid)
        ended_by_second = {id_ for id_, _, pid in fleet.lines("end") if pid == second.pid}

    verdict = await judge(store)
    await store.close()
    assert set(verdict.terminals.values()) == {1}
    assert verdict.stale_writes_accepted == 0
    assert len(ended_by_second) == verdict.takeovers == refused == 20


async def test_claims_racing_from_processes_never_overlap(tmp_path: Path) -> None:
    """Two workers racing for the same events: each event is started under one claim only when nobody dies."""
    url = f"sqlite:///{tmp_path}/claims.db"
    store = await open_store(url)
    with Fleet(url, tmp_path / "ledger", handler_seconds=0.002, lease=30.0, concurrency=4) as fleet:
        for _ in range(4):
            fleet.start()
        await publish(store, 4000)
        await drained(store, 40)
        await fleet.stop()
        starts = [id_ for id_, fence, _ in fleet.lines("start") if fence == 1]
        workers = {pid for _, _, pid in fleet.lines("start")}

    verdict = await judge(store)
    await store.close()
    assert len(starts) == len(set(starts)) == 4000
    assert verdict.takeovers == 0
    assert set(verdict.terminals.values()) == {1}
    assert len(workers) == 4, "the events must be shared by all processes, not taken by a lucky one"


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (another process changes it)
            await asyncio.sleep(0.02)
