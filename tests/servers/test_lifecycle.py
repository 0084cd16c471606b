"""Every server that durabus starts: up, down, killed, kept, never left behind."""

import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.presence import installed

from durabus.errors import ServerError
from durabus.testing.servers.process import CLIENT_PORTS, LOOPBACK, RECORD_FILE
from durabus.testing.servers.server import SERVERS, Server, make_server

pytestmark = pytest.mark.processes

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes and shared memory as Linux has them")
quick_ones = pytest.mark.parametrize("kind", [kind for kind in SERVERS if kind != "kafka"])
every_one = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if kind == "kafka" else []) for kind in SERVERS]
)
"""A start of Kafka takes seconds, and these tests start several times."""

STARTER = """
import sys, time
from durabus.testing.servers.server import make_server
server = make_server(sys.argv[1])
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def shared_memory(pid: int) -> set[str]:
    """Return the System V and POSIX shared memory, which a server keeps outside its folder and its processes."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    files = re.findall(r"/dev/shm/\S+", Path(f"/proc/{pid}/maps").read_text())  # noqa: S108  (looked at only)
    return {*files, *(row[1] for row in rows if row[4] == str(pid))}


def left_of(segments: set[str]) -> set[str]:
    present = {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
    return {one for one in segments if one in present or (one.startswith("/") and Path(one).exists())}


def below(folder: Path) -> list[str]:
    """Return the command lines of processes that name ``folder``, or work below it."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line or str(process.joinpath("cwd").readlink()).startswith(str(folder)):
                found.append(line)
        except OSError:
            continue
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; it must be empty afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@on_linux
@pytest.mark.timeout(180)
@every_one
def test_a_server_keeps_its_url_over_restarts_and_kills_and_leaves_nothing_behind(folder: Path, kind: str) -> None:
    server = installed(make_server(kind))
    with server:
        url, pid, segments = server.url, server.pid, shared_memory(server.pid)
        assert url.startswith(f"{kind}://")
        assert below(folder) != []
        server.restart()
        assert server.pid != pid
        server.restart(immediate=True)
        segments |= shared_memory(server.pid)
        server.kill()
        assert below(folder) == []
        server.start()
        segments |= shared_memory(server.pid)
        assert (server.url, server.running) == (url, True)
    assert below(folder) == []
    assert left_of(segments) == set()
    assert kind != "postgresql" or len(segments) >= 3, "this test sees no shared memory where there must be some"


@on_linux
@quick_ones
def test_a_killed_server_leaves_nothing_behind_either(folder: Path, kind: str) -> None:
    server = installed(make_server(kind))
    with server:
        segments = shared_memory(server.pid)
        server.kill()
        assert kind != "postgresql" or left_of(segments) != set()
        server.kill()
        assert not server.running
    server.stop()
    assert below(folder) == []
    assert left_of(segments) == set()


@quick_ones
def test_a_kept_folder_has_the_same_url_again(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "deep" / kind
    with installed(make_server(kind, place)) as server:
        url = server.url
    assert stat.S_IMODE((place / RECORD_FILE).stat().st_mode) == 0o600
    with make_server(kind, place) as server:
        assert server.url == url


def test_a_kept_folder_moves_to_another_port_if_its_own_is_taken(tmp_path: Path) -> None:
    with installed(make_server("nats", tmp_path / "a")) as server:
        url = server.url
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / RECORD_FILE).write_bytes((tmp_path / "a" / RECORD_FILE).read_bytes())
    with make_server("nats", tmp_path / "b") as taker, make_server("nats", tmp_path / "a") as server:
        assert taker.url == url
        assert server.url != url


@quick_ones
def test_a_port_that_was_taken_before_the_start_is_left_to_its_owner(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may take the port between our look and the start of the server."""
    with installed(make_server("nats", tmp_path / "owner")) as owner:
        taken = int(owner.url.rpartition(":")[2])
        answers = iter([[taken], [taken]])
        free_ports = sys.modules[Server.__module__].free_ports
        monkeypatch.setattr(Server.__module__ + ".free_ports", lambda count: next(answers, None) or free_ports(count))
        with installed(make_server(kind, tmp_path / "late")) as server:
            assert f"{LOOPBACK}:{taken}" not in server.url


@on_linux
@quick_ones
def test_the_port_of_a_server_is_not_one_that_clients_are_given(tmp_path: Path, kind: str) -> None:
    with installed(make_server(kind, tmp_path)) as server:
        port = int(server.url.rpartition(f"{LOOPBACK}:")[2].partition("/")[0])
    assert port < int(CLIENT_PORTS.read_text().split()[0])


@quick_ones
def test_a_server_outlives_the_thread_that_started_it(kind: str) -> None:
    server = installed(make_server(kind))
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        server.restart()  # which fails if it is gone
        assert server.running
    finally:
        server.stop()


@on_linux
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_does_not_outlive_a_killed_parent(tmp_path: Path, kind: str) -> None:
    installed(make_server(kind))
    command = [sys.executable, "-c", STARTER, kind]
    with subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([server], [], [], 20)
    os.close(server)
    assert ended, "the server outlived the process that started it"


@quick_ones
def test_using_a_server_in_the_wrong_order_is_refused(kind: str) -> None:
    server = installed(make_server(kind))
    with pytest.raises(ServerError, match="was not started"):
        _ = server.url
    with pytest.raises(ServerError, match="not running"):
        server.kill()
    server.stop()
    with server:
        with pytest.raises(ServerError, match="running already"):
            server.start()
        assert server.running
