"""Takeover from processes that are killed, frozen or forked, with default settings: the lease is 30 s."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.places import SHARED, fresh_url

from durabus import Action, EventStore, new_event, open_store
from durabus.client import Client
from durabus.store.processes import PRESENT_FOR

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

WORKER = Path(__file__).with_name("takeover_worker.py")
STUCK = 100
WITHIN = {"sqlite": 0.5, "postgresql": 1.0, "redis": 3.0, "nats": 3.0, "kafka": 3.0}
"""Seconds from the kill to the end of the last event."""
UNDER_LOAD = 2.0
"""Tests share the machine with others."""
KEEP_FROZEN = ("sqlite", "postgresql")
"""Stores on which a process that only stands still keeps its claims."""


class Workers:
    """Processes that share a store and a ledger."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url = url
        self._ledger = ledger
        self._ledger.touch()
        self._running: list[subprocess.Popen[bytes]] = []

    async def start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a process and wait until it claims."""
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        command = [sys.executable, str(WORKER), self._url, str(self._ledger), kind, *options]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220  (it returns at once)
        self._running.append(worker)
        await self.reach("up", 1, worker)
        return worker

    def port(self) -> int:
        """Return the port of the server that was started last."""
        return max(int(line.split()[1]) for line in self._ledger.read_text().splitlines() if line.startswith("up "))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()

    def count(self, what: str, worker: subprocess.Popen[bytes] | None = None) -> int:
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        return sum(line[0] == what and (worker is None or line[2] == str(worker.pid)) for line in lines)

    async def reach(self, what: str, count: int, worker: subprocess.Popen[bytes] | None = None) -> None:
        async with asyncio.timeout(40):
            while self.count(what, worker) < count:  # noqa: ASYNC110  (another process writes it)
                await asyncio.sleep(0.005)

    def close(self) -> None:
        self._ledger.with_name(self._ledger.name + ".end").touch()
        for worker in self._running:
            if worker.returncode is None:
                worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.communicate()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(kind, request, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(url, tmp_path / "ledger")
    yield made
    made.close()


async def stuck(store: EventStore, workers: Workers, kind: str = "stuck", *options: str) -> subprocess.Popen[bytes]:
    """Return a process that holds 100 events and never ends one of them."""
    await store.add_events([new_event("stuck", {"n": n}) for n in range(STUCK)])
    worker = await workers.start(kind, *options)
    await workers.reach("start", STUCK, worker)
    return worker


@pytest.mark.parametrize("kind", SHARED, indirect=True)
async def test_the_events_of_a_killed_process_are_taken_over_at_once(
    kind: str, store: EventStore, workers: Workers
) -> None:
    victim = await stuck(store, workers)
    other = await workers.start("quick")
    workers.kill(victim)
    began = time.monotonic()
    await workers.reach("end", STUCK, other)
    seconds = time.monotonic() - began
    sys.stdout.write(f"{kind}: {STUCK} events of a killed process were handled after {seconds * 1000:.0f} ms\n")
    assert seconds < WITHIN[kind] * UNDER_LOAD
    lost = [entry for entry in (await store.read_log(limit=1000)).entries if entry.action is Action.ABANDONED]
    assert len(lost) == STUCK
    assert {entry.error for entry in lost} == {f"process ended (worker {lost[0].worker_id})"}


@pytest.mark.parametrize("kind", SHARED, indirect=True)
async def test_the_claims_of_a_process_keep_their_leases_with_takeover_lease(
    store: EventStore, workers: Workers
) -> None:
    victim = await stuck(store, workers, "stuck", "lease")
    other = await workers.start("quick")
    workers.kill(victim)
    await asyncio.sleep(4.0)  # longer than any store needs to see the end of a process
    assert workers.count("start", other) == 0
    assert await abandoned(store) == 0


@pytest.mark.parametrize("kind", SHARED, indirect=True)
async def test_a_process_that_starts_later_takes_over(kind: str, store: EventStore, workers: Workers) -> None:
    """All processes ended, perhaps with their host: the first one that starts again finds what they left."""
    victim = await stuck(store, workers)
    workers.kill(victim)
    other = await workers.start("quick")
    began = time.monotonic()  # Python takes seconds to start on a busy machine
    await workers.reach("end", STUCK, other)
    assert time.monotonic() - began < WITHIN[kind] * UNDER_LOAD


@pytest.mark.parametrize("kind", KEEP_FROZEN, indirect=True)
async def test_a_frozen_process_keeps_its_claims(store: EventStore, workers: Workers) -> None:
    victim = await stuck(store, workers)
    other = await workers.start("quick")
    victim.send_signal(signal.SIGSTOP)
    await asyncio.sleep(3.0)
    assert workers.count("start", other) == 0
    victim.send_signal(signal.SIGCONT)
    await asyncio.sleep(0.5)
    assert await abandoned(store) == 0
    assert (await store.counts()).processing == STUCK


@pytest.mark.parametrize("kind", KEEP_FROZEN, indirect=True)
async def test_a_forked_child_does_not_keep_the_presence_of_its_parent(
    kind: str, store: EventStore, workers: Workers
) -> None:
    victim = await stuck(store, workers, "forked")
    await workers.reach("forked", 1)
    other = await workers.start("quick")
    workers.kill(victim)
    began = time.monotonic()
    await workers.reach("end", STUCK, other)
    assert time.monotonic() - began < WITHIN[kind] * UNDER_LOAD


@pytest.mark.parametrize("kind", SHARED, indirect=True)
async def test_a_process_that_shuts_down_leaves_no_trace(store: EventStore, workers: Workers) -> None:
    worker = await workers.start("quick")
    await store.add_events([new_event("quick") for _ in range(10)])
    await workers.reach("end", 10)
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 20) == 0
    await asyncio.sleep(PRESENT_FOR)
    assert (await store.ended_processes()).incarnations == []


@pytest.mark.parametrize("kind", KEEP_FROZEN, indirect=True)
async def test_a_claim_over_http_outlives_the_server_process(store: EventStore, workers: Workers) -> None:
    """The worker is another process, and it goes on."""
    await store.add_events([new_event("remote")])
    server = await workers.start("server")
    async with Client(f"http://127.0.0.1:{workers.port()}") as client:
        assert len(await client.claim(limit=1)) == 1
    other = await workers.start("quick")
    workers.kill(server)
    await asyncio.sleep(2.0)
    assert workers.count("start", other) == 0
    assert await abandoned(store) == 0


async def abandoned(store: EventStore) -> int:
    """Return how many claims were taken back."""
    return sum(entry.action is Action.ABANDONED for entry in (await store.read_log(limit=1000)).entries)
