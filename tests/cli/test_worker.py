"""`durabus worker MODULE:BUS` in a real process, stopped by real signals."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli.conftest import Durabus
from tests.servers.presence import installed

from durabus import EventQueue, EventStore
from durabus.cli.worker import SAME_REQUEST
from durabus.testing.servers.server import SERVERS, Server, make_server

pytestmark = pytest.mark.processes

APP = """
import asyncio
from pathlib import Path
from durabus import Event, EventBus

bus = EventBus("sqlite:///bus.db", poll_interval=0.1, lease=5)

@bus.on("order.*", id="serve")
async def serve(event: Event) -> None:
    while not Path(event.payload["until"]).exists():
        await asyncio.sleep(0.01)
"""

SYNC_APP = """
from durabus import Event, SyncEventBus

bus = SyncEventBus("sqlite:///bus.db", serve=False, poll_interval=0.1, lease=5)

@bus.on("order.placed", id="place")
def place(event: Event) -> None:
    bus.publish("order.noted")

@bus.on("order.noted", id="note")
async def note(event: Event) -> None: ...
"""


@contextmanager
def worker(folder: Path, *options: str, app: str = APP) -> Iterator[subprocess.Popen[str]]:
    (folder / "app.py").write_text(app)
    process = subprocess.Popen(
        [sys.executable, "-m", "durabus.cli.main", "worker", "app:bus", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert f"worker {process.pid} serves bus 'default'" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


async def until_one_is_processing(store: EventStore) -> None:
    while (await store.counts()).processing == 0:  # noqa: ASYNC110  (it happens in another process)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_running_handler_finish(
    store: EventStore, tmp_path: Path, number: signal.Signals
) -> None:
    queue = EventQueue(store)
    with worker(tmp_path) as process:
        running = await queue.publish("order.placed", {"until": "it is told to stop"})
        await until_one_is_processing(store)
        os.kill(process.pid, number)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping: 1 in progress on all workers, 0 waiting")
        (tmp_path / "it is told to stop").touch()
        _, words = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopped: 1 completed, 0 retried, 0 dead letters, 0 claims lost, 0 without a handler" in words
    ended = await store.get_event(running.id)
    assert ended is not None
    assert (ended.status, ended.attempts) == ("COMPLETED", 1)


async def test_what_does_not_finish_in_time_is_given_back(store: EventStore, tmp_path: Path) -> None:
    queue = EventQueue(store)
    with worker(tmp_path, "--shutdown-timeout", "0.1") as process:
        running = await queue.publish("order.placed", {"until": "never"})
        await until_one_is_processing(store)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
    left = await store.get_event(running.id)
    assert left is not None
    assert (left.status, left.attempts) == ("PENDING", 0)


async def test_a_second_signal_quits_at_once(store: EventStore, tmp_path: Path) -> None:
    queue = EventQueue(store)
    with worker(tmp_path) as process:
        await queue.publish("order.placed", {"until": "never"})
        await until_one_is_processing(store)
        os.kill(process.pid, signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping: ")
        await asyncio.sleep(SAME_REQUEST)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


async def test_a_signal_that_comes_twice_at_once_is_one_request(store: EventStore, tmp_path: Path) -> None:
    """The program timeout(1) sends a signal to the process and to its group."""
    queue = EventQueue(store)
    with worker(tmp_path) as process:
        await queue.publish("order.placed", {"until": "it is told to stop"})
        await until_one_is_processing(store)
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping: ")
        (tmp_path / "it is told to stop").touch()
        _, words = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopped: 1 completed" in words


async def test_the_json_output_says_when_the_worker_serves_and_what_it_did(store: EventStore, tmp_path: Path) -> None:
    with worker(tmp_path, "--json") as process:
        event = await EventQueue(store).publish("order.placed", {"until": "app.py"})
        while not (found := await store.get_event(event.id)) or found.status != "COMPLETED":  # noqa: ASYNC110  (it happens in another process)
            await asyncio.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"bus": "default", "pid": process.pid},
        {"completed": 1, "retried": 0, "dead_letters": 0, "claims_lost": 0, "without_a_handler": 0},
    ]


async def test_a_bus_for_scripts_that_only_publishes_elsewhere_is_served_and_its_plain_handlers_may_publish(
    store: EventStore, tmp_path: Path
) -> None:
    with worker(tmp_path, app=SYNC_APP) as process:
        event = await EventQueue(store).publish("order.placed")
        while not (found := await store.get_event(event.id)) or found.status != "COMPLETED":  # noqa: ASYNC110  (it happens in another process)
            await asyncio.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        _, words = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopped: 2 completed, 0 retried, 0 dead letters, 0 claims lost, 0 without a handler" in words


FAILING_APP = """
from durabus import EventBus, RetryPolicy

bus = EventBus("sqlite:///bus.db", retry=RetryPolicy(max_retries=1, base_delay=0.01))

@bus.on("order.placed", id="mailer")
async def mail(event) -> None:
    raise KeyError("s")
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_failed_attempts_are_logged_with_event_handler_attempt_and_the_last_traceback(
    store: EventStore, tmp_path: Path, log_format: str
) -> None:
    with worker(tmp_path, "--log-format", log_format, app=FAILING_APP) as process:
        event = await EventQueue(store).publish("order.placed")  # now: what comes before "serves" is read already
        while not (found := await store.get_event(event.id)) or found.status != "FAILED":  # noqa: ASYNC110  (it happens in another process)
            await asyncio.sleep(0.02)
        process.terminate()
        _, words = process.communicate(timeout=20)
    assert process.returncode == 0
    if log_format == "text":
        told = f"durabus.retry: event {event.event_id} (order.placed), handler mailer: attempt"
        assert f"WARNING {told} 1 of 2 failed, next in " in words
        assert f"ERROR {told} 2 of 2 failed, no further attempt: KeyError: 's'\nTraceback" in words
        assert words.count("Traceback") == 1
        assert 'app.py", line 8, in mail' in words
        return
    records = [json.loads(line) for line in words.splitlines()]
    assert [record["level"] for record in records if record["logger"] == "durabus.cli"] == ["INFO"] * 2
    first, last = [record for record in records if record["logger"] == "durabus.retry"]
    named = {"event_id": event.event_id, "event_type": "order.placed", "subscription_id": "mailer", "max_attempts": 2}
    assert named.items() <= first.items()
    assert named.items() <= last.items()
    assert (first["attempt"], last["attempt"], last["delay_ms"], last["error"]) == (1, 2, None, "KeyError: 's'")
    assert "traceback" not in first
    assert 'app.py", line 8, in mail' in last["traceback"]


AWAY_APP = """
from pathlib import Path
from durabus import EventBus, StoreUnavailableError
from durabus.stores.memory.store import MemoryStore

def failing(verb):
    async def call(self, *arguments, **options):
        if Path("away").exists():
            raise StoreUnavailableError("connection refused")
        return await getattr(MemoryStore, verb)(self, *arguments, **options)
    return call

VERBS = ("claim_next_events", "settle_events", "wait_for_work", "counts", "register_handlers", "list_handlers")
bus = EventBus(type("Away", (MemoryStore,), {verb: failing(verb) for verb in VERBS})(), poll_interval=0.1)

@bus.on("order.*", id="serve")
async def serve(event) -> None: ...
"""


def test_a_worker_whose_store_is_away_says_little_and_stops_within_five_seconds(tmp_path: Path) -> None:
    with worker(tmp_path, app=AWAY_APP) as process:
        (tmp_path / "away").touch()
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while "fails for 1." not in lines[-1]:
            lines.append(process.stderr.readline())
        assert len(lines) <= 4, "after 0, 0.5 and 1 seconds, and one that hints are missing"
        begun = time.monotonic()
        process.terminate()
        _, words = process.communicate(timeout=20)
    assert process.returncode == 0
    assert time.monotonic() - begun < 5
    assert "stopping: the store does not respond" in words
    assert "stopped: 0 completed" in words


FROZEN_APP = """
from durabus import EventBus

bus = EventBus({url!r})

@bus.on("order.*", id="serve")
async def serve(event) -> None: ...
"""


STOPPED_OR_ENDED = {"T", "Z", "X"}


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop the server and every process that it started, until the context ends.

    On a busy machine, threads go on until the one that gets the signal has a turn, so this waits for all of them.
    """
    pids = family(pid)
    for one in pids:
        os.kill(one, signal.SIGSTOP)
    try:
        while any(state not in STOPPED_OR_ENDED for one in pids for state in states(one)):
            time.sleep(0.001)
        yield
    finally:
        for one in pids:
            os.kill(one, signal.SIGCONT)


def states(pid: int) -> list[str]:
    """The state of each thread, as Linux names it."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            found.append(stat.read_text().rpartition(")")[2].split()[0])
    return found


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def started(kind: str, stack: ExitStack, request: pytest.FixtureRequest) -> tuple[Server, str]:
    """A server, and the URL of an empty store on it. Kafka is the one of all tests: it takes seconds to begin."""
    if kind == "kafka":
        server: Server = request.getfixturevalue("kafka_server")
        return server, f"{server.url}?prefix={request.getfixturevalue('kafka_prefixes').take()}"
    server = stack.enter_context(installed(make_server(kind)))
    return server, server.url


@pytest.mark.parametrize("kind", SERVERS)
def test_a_worker_whose_server_is_frozen_stops_within_five_seconds(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        server, url = started(kind, stack, request)
        process = stack.enter_context(worker(tmp_path, app=FROZEN_APP.format(url=url)))
        stack.enter_context(frozen(server.pid))
        begun = time.monotonic()
        process.terminate()
        _, words = process.communicate(timeout=20)
        assert process.returncode == 0
        assert time.monotonic() - begun < 5
    assert "stopping: the store does not respond" in words
    assert "stopped: 0 completed" in words


DOWN_APP = """
from pathlib import Path
from durabus import EventBus
from durabus.maintenance import services

services.EVERY = 0.5
bus = EventBus({url!r})
look = bus.store.expire_events

async def expire_events(**options):
    Path("a pass has begun").touch()
    return await look(**options)

bus.store.expire_events = expire_events

@bus.on("order.*", id="serve")
async def serve(event) -> None: ...
"""
FAILS = "the store of bus 'default' fails for "


@contextmanager
def ended_after(seconds: float, process: subprocess.Popen[str]) -> Iterator[None]:
    """A process that says nothing more ends, so that its output ends too."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_worker_whose_server_is_down_says_little_and_stops_within_five_seconds(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        server, url = started(kind, stack, request)
        process = stack.enter_context(worker(tmp_path, app=DOWN_APP.format(url=url)))
        assert process.stderr is not None
        server.kill()
        if kind == "kafka":
            stack.callback(server.start)
        (tmp_path / "a pass has begun").unlink(missing_ok=True)
        with ended_after(30, process):
            lines = [process.stderr.readline()]
            while lines[-1] and not re.search(rf"{FAILS}[4-9]\.", lines[-1]):
                lines.append(process.stderr.readline())
        assert any(re.search(rf"{FAILS}[0-2]\.", line) for line in lines), "it reports the outage within three seconds"
        assert (tmp_path / "a pass has begun").exists(), "the stop must also end a pass of the maintenance"
        assert len(lines) <= 8, "".join(lines)
        begun = time.monotonic()
        process.terminate()
        _, words = process.communicate(timeout=20)
        assert time.monotonic() - begun < 5
    assert process.returncode == 0
    assert "stopping: the store does not respond" in words
    assert "stopped: 0 completed" in words


@pytest.mark.parametrize(
    "words", [("worker", "app:bus", "--store", "sqlite:///a.db"), ("--store=sqlite:///a.db", "worker", "app:bus")]
)
def test_a_store_for_the_worker_is_refused_with_what_to_do_instead(durabus: Durabus, words: tuple[str, ...]) -> None:
    done = durabus(*words)
    assert done.code == 2
    assert "app:bus has its own store" in done.err
    assert "give the URL to the bus in your code, or give it none and set DURABUS_STORE" in done.err
