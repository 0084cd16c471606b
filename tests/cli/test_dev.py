"""`durabus dev up`: prints the URL, runs until a signal, leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.servers.presence import installed

from durabus.testing.servers.server import make_server

pytestmark = pytest.mark.processes

UP = [sys.executable, "-m", "durabus.cli.main", "dev", "up"]


def start(tmp_path: Path, *options: str, kind: str = "postgresql") -> "subprocess.Popen[str]":
    installed(make_server(kind))
    return subprocess.Popen(
        [*UP, kind, *options],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [("postgresql", signal.SIGINT, 130), ("redis", signal.SIGTERM, 143), ("nats", signal.SIGTERM, 143)],
)
def test_a_signal_stops_the_server_and_nothing_is_left(
    tmp_path: Path, kind: str, number: signal.Signals, code: int
) -> None:
    with start(tmp_path, kind=kind) as command:
        assert command.stdout is not None
        url = command.stdout.readline().strip()
        assert url.startswith(f"{kind}://")
        command.send_signal(number)
        out, words = command.communicate(timeout=30)
    assert command.returncode == code
    assert out == ""
    assert f"export DURABUS_STORE='{url}'" in words
    assert words.endswith("stopped; its data is deleted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_the_server_starts_is_not_lost(tmp_path: Path) -> None:
    with start(tmp_path) as command:
        while not any(tmp_path.glob("durabus-postgresql-*/server.log")):
            assert command.poll() is None
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=30)
    assert command.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_its_data_may_be_kept(tmp_path: Path) -> None:
    urls = set()
    for _ in range(2):
        with start(tmp_path, "--json", "--data-dir", str(tmp_path / "pg")) as command:
            assert command.stdout is not None
            found = json.loads(command.stdout.readline())
            urls.add(found["url"])
            psycopg.connect(found["url"]).close()
            command.send_signal(signal.SIGTERM)
            _, words = command.communicate(timeout=30)
        assert (found["server"], found["kept"], found["directory"]) == ("postgresql", True, str(tmp_path / "pg"))
        assert words.endswith(f"stopped; its data is in {tmp_path / 'pg'}\n")
    assert len(urls) == 1


def test_a_server_that_dies_is_reported(tmp_path: Path) -> None:
    with start(tmp_path, "--json") as command:
        assert command.stdout is not None
        os.kill(json.loads(command.stdout.readline())["pid"], signal.SIGTERM)
        _, words = command.communicate(timeout=30)
    assert command.returncode == 1
    assert "error: no PostgreSQL\n  it ended by itself: " in words
    assert "received smart shutdown request" in words
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with start(tmp_path, "--data-dir", str(tmp_path)) as command:
        _, words = command.communicate(timeout=30)
    assert command.returncode == 1
    assert "is not empty" in words
