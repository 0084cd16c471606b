"""A real SQLite store, and the `durabus` command."""

import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durabus import EventQueue, EventStore, UnrecoverableError, open_store
from durabus.cli.main import main


class Done(msgspec.Struct, frozen=True):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Durabus = Callable[..., Done]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bus.db"


@pytest.fixture
def durabus(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Durabus:
    """Run `durabus …` in this process, in a thread with no event loop, with DURABUS_STORE set to the test's store."""

    def run(*arguments: str, stdin: str = "", store: str | None = url, **environment: str) -> Done:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.delenv("DURABUS_STORE", raising=False)
            for name, value in {**environment, **({"DURABUS_STORE": store} if store else {})}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            with ThreadPoolExecutor(1) as thread:
                code = thread.submit(main, arguments).result(timeout=50)
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        return Done(code, out, err)

    return run


@pytest.fixture
def durabus_process(url: str, tmp_path: Path) -> Durabus:
    """Run `durabus …` in a process of its own."""

    def run(*arguments: str, stdin: str = "", store: str | None = url, **environment: str) -> Done:
        wanted = {**environment, **({"DURABUS_STORE": store} if store else {})}
        done = subprocess.run(
            [sys.executable, "-m", "durabus.cli.main", *arguments],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env={**{name: value for name, value in os.environ.items() if name != "DURABUS_STORE"}, **wanted},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


@pytest.fixture
async def queue(store: EventStore) -> EventQueue:
    """Event 1 is completed, 2 is a dead letter, 3 waits."""
    queue = EventQueue(store)
    for number in (1, 2, 3):
        await queue.publish("order.placed", {"order": number}, tags=["eu"] if number == 1 else [])
    for errors in ([], [UnrecoverableError("no such customer")]):
        event = await queue.poll()
        assert event is not None
        await queue.finalize(event.id, error_results=errors)
    return queue
