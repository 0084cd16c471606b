"""Real processes on one store are frozen and race. The tests run on every store that processes can share."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from tests.processes.fleet import Fleet, drained, judge

from durabus import EventQueue, EventStore, new_event, open_store

pytestmark = pytest.mark.processes


@pytest.fixture(params=["sqlite", "postgresql", "redis", "nats", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/race.db"
    if request.param == "postgresql":
        database: str = request.getfixturevalue("postgresql_store_url")
        return database
    return f"{request.getfixturevalue(f'{request.param}_url')}?prefix=race{uuid4().hex}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


async def publish(store: EventStore, count: int) -> None:
    queue = EventQueue(store)
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await queue.publish_batch([new_event("race.event", {"number": start + n}) for n in range(size)])


async def until_drained(store: EventStore, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await drained(store):  # noqa: ASYNC110  (other processes drain it)
            await asyncio.sleep(0.2)


async def freeze(worker: subprocess.Popen[bytes], store: EventStore) -> None:
    """Freeze a worker, but not in the middle of a write to a file: no other process could write until it goes on."""
    while True:
        worker.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(1):
                await store.expire_events()
        except TimeoutError:
            worker.send_signal(signal.SIGCONT)
        else:
            return


async def test_a_worker_frozen_past_its_lease_cannot_write(url: str, store: EventStore, tmp_path: Path) -> None:
    """A worker is stopped for longer than its lease: the other worker ends the events, the stale writes are refused."""
    await publish(store, 20)
    with Fleet(url, tmp_path / "ledger", handler_seconds=0.05, lease=1.5, concurrency=20) as fleet:
        frozen = fleet.start(handler_seconds=4.0)  # none of them ends before it is frozen, some do before it goes on
        await until(lambda: len(fleet.lines("start")) == 20)
        await freeze(frozen, store)
        second = fleet.start()
        await until_drained(store, 40)
        frozen.send_signal(signal.SIGCONT)
        await fleet.stop()
        refused = fleet.refused()[frozen.pid]
        ended_by_second = {id_ for id_, _, pid in fleet.lines("end") if pid == second.pid}

    verdict = await judge(store)
    assert set(verdict.terminals.values()) == {1}
    assert verdict.stale_writes_accepted == 0
    assert len(ended_by_second) == verdict.takeovers == refused == 20


async def test_claims_racing_from_processes_never_overlap(url: str, store: EventStore, tmp_path: Path) -> None:
    """Four workers race for the same events. If no worker dies, each event is started under one claim only."""
    with Fleet(url, tmp_path / "ledger", handler_seconds=0.002, lease=30.0, concurrency=4) as fleet:
        for _ in range(4):
            fleet.start()
        await until(lambda: len(fleet.lines("up")) == 4)
        await publish(store, 4000)
        await until_drained(store, 40)
        await fleet.stop()
        starts = [(id_, fence) for id_, fence, _ in fleet.lines("start")]
        workers = {pid for _, _, pid in fleet.lines("start")}

    verdict = await judge(store)
    assert len(starts) == len(set(starts)) == 4000 + verdict.retries
    assert len({id_ for id_, _ in starts}) == 4000
    assert verdict.takeovers == 0
    assert set(verdict.terminals.values()) == {1}
    assert len(workers) == 4, "the events must be shared by all processes, not taken by a lucky one"


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (another process changes it)
            await asyncio.sleep(0.02)
