"""Requests to other processes, and batches whose process is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.places import SHARED, fresh_url

from durabus import EventBus, EventStatus

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

WORKER = Path(__file__).with_name("answering_worker.py")
LONG = 60.0


class Workers:
    """Processes that share a store and a ledger."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._place = [url, str(ledger)]
        self._ledger = ledger
        self._ledger.touch()
        self._running: list[subprocess.Popen[bytes]] = []

    async def start(self, kind: str) -> subprocess.Popen[bytes]:
        """Start a process and wait until it claims."""
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        command = [sys.executable, str(WORKER), *self._place, kind]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220  (it returns at once)
        self._running.append(worker)
        await self.reach("up", 1, worker)
        return worker

    async def reach(self, what: str, count: int, worker: subprocess.Popen[bytes]) -> None:
        async with asyncio.timeout(LONG):
            while self.count(what, worker) < count:  # noqa: ASYNC110  (another process writes it)
                await asyncio.sleep(0.005)

    def count(self, what: str, worker: subprocess.Popen[bytes]) -> int:
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        return sum(line[0] == what and line[2] == str(worker.pid) for line in lines)

    def close(self) -> None:
        for worker in self._running:
            worker.kill()
            worker.communicate()


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, request, tmp_path)


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(url, tmp_path / "ledger")
    yield made
    made.close()


async def test_a_request_returns_the_value_that_another_process_computed(url: str, workers: Workers) -> None:
    both = [await workers.start("quick") for _ in range(2)]
    async with EventBus(url, serve=False) as bus:
        answers = await asyncio.gather(*(bus.request("price.quote", n, timeout=LONG) for n in range(200)))
    assert [answer["price"] for answer in answers] == [2 * n for n in range(200)]
    assert {answer["pid"] for answer in answers} <= {worker.pid for worker in both}
    assert os.getpid() not in {answer["pid"] for answer in answers}


async def test_every_event_of_a_batch_whose_process_was_killed_runs_again_with_a_larger_fence(
    url: str, workers: Workers
) -> None:
    stuck = await workers.start("stuck")
    async with EventBus(url, serve=False) as bus:
        handles = [bus.emit("metric.cpu", n) for n in range(20)]
        await workers.reach("start", 20, stuck)
        stuck.kill()
        stuck.wait()
        await workers.start("quick")
        fences = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in handles)), LONG)
        ends = [await handle for handle in handles]
    assert fences == [2] * 20
    assert {(event.status, event.attempts) for event in ends} == {(EventStatus.COMPLETED, 2)}
