"""Modes and ordering keys between real processes, some of them killed: judged by a ledger outside the store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.places import SHARED, fresh_url

from durabus import Event, EventStore, NewEvent, new_event, open_store

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

WORKER = Path(__file__).with_name("overlap_worker.py")
LEASE = 1.5


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, request, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


class Workers:
    """Processes that share a store and a ledger."""

    def __init__(self, url: str, ledger: Path, mode: str, *buses: str) -> None:
        self._arguments = [url, str(ledger), mode, str(LEASE), *buses]
        self._ledger = ledger
        self._ledger.touch()
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        command = [sys.executable, str(WORKER), *self._arguments]
        self._running.append(subprocess.Popen(command, stdin=subprocess.PIPE))

    def kill_one_at_work(self) -> None:
        """Kill a process with SIGKILL inside a handler. The ledger says when it was dead for sure."""
        busy = {line["pid"] for line in still_open(self.lines())}
        victim = next((worker for worker in self._running if worker.pid in busy), self._running[0])
        victim.kill()
        victim.communicate()
        self._running.remove(victim)
        with self._ledger.open("ab", buffering=0) as file:
            os.write(file.fileno(), msgspec.json.encode({"what": "killed", "pid": victim.pid}) + b"\n")

    def close(self) -> None:
        for worker in self._running:
            worker.kill()
            worker.communicate()

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self._ledger.read_bytes().splitlines()]

    async def reach(self, count: int, what: str = "end") -> None:
        async with asyncio.timeout(30):
            while sum(line["what"] == what for line in self.lines()) < count:  # noqa: ASYNC110  (others write it)
                await asyncio.sleep(0.02)


@pytest.fixture
def made() -> Iterator[list[Workers]]:
    made: list[Workers] = []
    yield made
    for workers in made:
        workers.close()


async def run(workers: Workers, store: EventStore, new: list[NewEvent]) -> list[Event]:
    """Run three processes; two of them are killed inside a handler and replaced."""
    for _ in range(3):
        workers.start()
    await workers.reach(3, "up")
    stored = await store.add_events(new)
    for share in (4, 2):
        await workers.reach(len(new) // share)
        workers.kill_one_at_work()
        workers.start()
    async with asyncio.timeout(40):
        while not (counts := await store.counts()).completed or counts.pending or counts.processing:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (counts.failed, counts.completed_with_errors) == (0, 0)
    return stored


def still_open(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the handlers that began and neither ended nor died with their process."""
    inside: dict[tuple[int, int], dict[str, Any]] = {}
    for line in lines:
        match line["what"]:
            case "start":
                inside[line["id"], line["fence"]] = line
            case "end":
                inside.pop((line["id"], line["fence"]), None)
            case "killed":
                inside = {key: one for key, one in inside.items() if one["pid"] != line["pid"]}
    return list(inside.values())


def overlaps(lines: list[dict[str, Any]], same: str | None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return pairs of handlers with equal ``same`` that ran at once, without a parent and the child it waits for."""
    found = []
    for n, line in enumerate(lines):
        if line["what"] == "start":
            others = [one for one in still_open(lines[:n]) if same is None or one[same] == line[same] is not None]
            found += [(one, line) for one in others if one["id"] != line["parent"]]
    return found


@pytest.mark.parametrize("mode", ["bus-serial", "global-serial"])
async def test_no_two_handlers_of_a_serial_mode_are_inside_at_once(
    url: str, store: EventStore, tmp_path: Path, made: list[Workers], mode: str
) -> None:
    new = [new_event("job", {"n": n}, bus=bus) for n in range(20) for bus in ("one", "two")]
    workers = Workers(url, tmp_path / "ledger", mode, "one", "two")
    made.append(workers)
    await run(workers, store, new)
    lines = workers.lines()
    assert overlaps(lines, "bus" if mode == "bus-serial" else None) == []
    done = {line["id"] for line in lines if line["what"] == "end" and not line["failed"]}
    assert len(done) > len(new)
    if mode == "bus-serial":
        assert overlaps(lines, None), "two buses have nothing to do with each other"


async def test_handlers_of_parallel_mode_really_are(
    url: str, store: EventStore, tmp_path: Path, made: list[Workers]
) -> None:
    workers = Workers(url, tmp_path / "ledger", "parallel", "one")
    made.append(workers)
    await run(workers, store, [new_event("job", {"n": n}, bus="one") for n in range(60)])
    pairs = overlaps(workers.lines(), "bus")
    assert any(one["pid"] != other["pid"] for one, other in pairs)
    assert any(one["pid"] == other["pid"] for one, other in pairs)


async def test_events_of_one_key_are_handled_one_at_a_time_and_in_order(
    url: str, store: EventStore, tmp_path: Path, made: list[Workers]
) -> None:
    """The head of a key that fails, or whose worker is killed, delays its key and nothing else."""
    keys = [f"customer-{n % 6}" for n in range(60)]
    workers = Workers(url, tmp_path / "ledger", "parallel", "one")
    made.append(workers)
    new = [new_event("job", {"n": n}, bus="one", ordering_key=key) for n, key in enumerate(keys)]
    stored = await run(workers, store, new)
    lines = workers.lines()
    assert overlaps(lines, "key") == []
    assert overlaps(lines, None), "different keys do not wait for each other"
    for key in set(keys):
        begun = [line["id"] for line in lines if line["what"] == "start" and line["key"] == key]
        assert begun == sorted(begun), "a later one began before an earlier one was done for good"
        assert set(begun) == {event.id for event in stored if event.ordering_key == key}
