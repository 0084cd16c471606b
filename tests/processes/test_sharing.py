"""Handlers of one event in real processes: they overlap in time, and outlive the processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.places import SHARED, fresh_url
from tests.processes.sharing_worker import MEET

from durabus import Event, EventStatus, EventStore, new_event, open_store
from durabus.model.statuses import Action

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

ROOT = Path(__file__).parents[2]
LEASE = 2.0


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, request, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


class Nodes:
    """Processes with one handler each, which share a store and a ledger."""

    def __init__(self, url: str, ledger: Path, mode: str) -> None:
        self._url, self._ledger, self._mode = url, ledger, mode
        self._ledger.touch()
        self._running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}

    def start(self, handler: str) -> int:
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        command = [sys.executable, "-m", "tests.processes.sharing_worker", self._url, str(self._ledger)]
        node = subprocess.Popen([*command, handler, self._mode, str(LEASE)], stdin=subprocess.PIPE, cwd=ROOT)
        self._running[node.pid] = handler, node
        return node.pid

    def kill(self, pid: int) -> None:
        _, node = self._running.pop(pid)
        node.send_signal(signal.SIGKILL)
        node.communicate()
        with self._ledger.open("ab", buffering=0) as file:
            os.write(file.fileno(), msgspec.json.encode({"what": "killed", "pid": pid}) + b"\n")

    def close(self) -> None:
        for pid in list(self._running):
            self.kill(pid)

    def lines(self, *what: str) -> list[dict[str, Any]]:
        lines = [msgspec.json.decode(line) for line in self._ledger.read_bytes().splitlines()]
        return [line for line in lines if line["what"] in what]

    def steps(self, n: int) -> list[str]:
        """Return the starts and ends of the handlers of an event in the order in which they happened."""
        return [line["what"] for line in self.lines("start", "end") if line["n"] == n]

    async def reach(self, what: str, count: int, **fields: object) -> list[dict[str, Any]]:
        async with asyncio.timeout(30):
            while True:
                found = [line for line in self.lines(what) if all(line[key] == fields[key] for key in fields)]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


@pytest.fixture
def made(url: str, tmp_path: Path) -> Iterator[list[Nodes]]:
    made: list[Nodes] = []
    yield made
    for nodes in made:
        nodes.close()


async def start(made: list[Nodes], url: str, tmp_path: Path, mode: str, *handlers: str) -> tuple[Nodes, dict[str, int]]:
    nodes = Nodes(url, tmp_path / "ledger", mode)
    made.append(nodes)
    pids = {handler: nodes.start(handler) for handler in handlers}
    await nodes.reach("up", len(handlers))
    return nodes, pids


async def publish(store: EventStore, count: int, slow: str = "") -> list[Event]:
    return await store.add_events([new_event("job", {"n": n, "slow": slow}) for n in range(count)])


async def completed(store: EventStore, count: int) -> None:
    async with asyncio.timeout(40):
        while (await store.counts()).completed < count:  # noqa: ASYNC110  (other processes complete them)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["parallel", "serial"])
async def test_every_event_is_picked_once_for_the_handlers_of_two_processes(
    url: str, store: EventStore, made: list[Nodes], tmp_path: Path, mode: str
) -> None:
    """In parallel mode they are at work at the same time, in serial mode never."""
    nodes, _ = await start(made, url, tmp_path, mode, "a", "b")
    events = await publish(store, 20, slow=MEET if mode == "parallel" else "")
    await completed(store, 20)
    steps = ["start", "start", "end", "end"] if mode == "parallel" else ["start", "end"] * 2
    assert {event.payload["n"]: nodes.steps(event.payload["n"]) for event in events} == dict.fromkeys(range(20), steps)
    assert Counter((line["handler"], line["n"]) for line in nodes.lines("end")) == {
        (handler, n): 1 for handler in "ab" for n in range(20)
    }
    for event in events:
        actions = [entry.action for entry in await store.read_event_log(event.id)]
        assert actions == [Action.PUBLISHED, Action.PICKED, Action.COMPLETED]


async def test_a_killed_coordinator_leaves_the_handler_of_the_other_process_at_work(
    url: str, store: EventStore, made: list[Nodes], tmp_path: Path
) -> None:
    """The process that coordinates the event dies inside its own handler. The other handler has run once, for good."""
    nodes, pids = await start(made, url, tmp_path, "parallel", "a", "b")
    (event,) = await publish(store, 1, slow="a")
    await nodes.reach("start", 1, handler="a")
    await nodes.reach("end", 1, handler="b")
    nodes.kill(pids["a"])
    nodes.start("a")
    await completed(store, 1)
    assert Counter(line["handler"] for line in nodes.lines("end")) == {"a": 1, "b": 1}
    assert Counter(line["handler"] for line in nodes.lines("start")) == {"a": 2, "b": 1}
    stored = await store.get_event(event.id)
    assert stored is not None
    assert stored.status is EventStatus.COMPLETED


async def test_the_handler_of_a_killed_process_runs_again_in_another_one(
    url: str, store: EventStore, made: list[Nodes], tmp_path: Path
) -> None:
    """Whichever process coordinates the event, the handler that died is claimed again, and the other one ran once."""
    nodes, pids = await start(made, url, tmp_path, "parallel", "a", "b")
    await publish(store, 1, slow="b")
    await nodes.reach("start", 1, handler="b")
    await nodes.reach("end", 1, handler="a")
    nodes.kill(pids["b"])
    nodes.start("b")
    await completed(store, 1)
    assert Counter(line["handler"] for line in nodes.lines("end")) == {"a": 1, "b": 1}
    assert Counter(line["handler"] for line in nodes.lines("start")) == {"a": 1, "b": 2}
