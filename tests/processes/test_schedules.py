"""Schedules between real processes: each slot has one tick, however many workers serve the bus and are killed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.places import SHARED, fresh_url

from durabus import EventStore, open_store
from durabus.model.query import EventQuery
from durabus.schedules.reading import LIVE
from durabus.schedules.schedule import state_bus
from durabus.schedules.schedules import Schedules

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

WORKER = Path(__file__).with_name("schedule_worker.py")
KILLS = 6
LIFE = (0.3, 0.9)
"""Seconds between two kills."""
MIN_SLOTS = 40


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, request, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        command = [sys.executable, str(WORKER), url, str(tmp_path / "ledger")]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return running[-1]

    yield begin
    for worker in running:
        worker.kill()
        worker.wait()
        if worker.stdin is not None:
            worker.stdin.close()


async def slots(store: EventStore) -> list[int]:
    """The slots of all ticks in milliseconds, in order."""
    found: list[int] = []
    before: int | None = None
    while True:
        page = await store.find(EventQuery(bus="default", type="beat", before_id=before, limit=1_000))
        at = [datetime.fromisoformat(event.metadata["schedule_slot"]) for event in page.events]
        found += [round(slot.timestamp() * 1000) for slot in at]
        before = page.next_before_id
        if before is None:
            return sorted(found)


def has_begun(ledger: Path, worker: subprocess.Popen[bytes]) -> bool:
    assert worker.poll() is None
    return ledger.exists() and f"up {worker.pid}\n" in ledger.read_text()


async def up(ledger: Path, worker: subprocess.Popen[bytes]) -> None:
    while not has_begun(ledger, worker):  # noqa: ASYNC110  (another process writes it)
        await asyncio.sleep(0.02)


async def test_every_slot_has_one_tick_while_workers_are_killed(
    store: EventStore, start: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    workers = [start(), start()]
    for worker in workers:
        await up(ledger, worker)
    for kill in range(KILLS):
        await asyncio.sleep(random.uniform(*LIFE))
        worker = workers.pop(kill % 2)
        worker.kill()
        worker.wait()
        workers.append(start())
        await up(ledger, workers[-1])
    while len(await slots(store)) < MIN_SLOTS:  # noqa: ASYNC110  (a store has no event to wait for)
        await asyncio.sleep(0.1)
    await Schedules(store, "default").pause("beat")
    ended = await slots(store)
    await asyncio.sleep(0.3)
    found = await slots(store)
    assert found == ended, "a paused schedule publishes nothing"
    assert {later - earlier for earlier, later in pairwise(found)} == {100}
    live = (await store.find(EventQuery(bus=state_bus("default"), statuses=LIVE))).events
    assert len(live) == 1
