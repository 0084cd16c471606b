"""Every command of examples/shop/README.md does what the page says, in a copy of its folder."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

from durabus import Counts, open_store
from durabus.testing.servers.process import free_ports

SHOP = Path(__file__).resolve().parents[2] / "examples" / "shop"
PORT = "8080"
ORDERS = {1: "lamp", 2: "radio", 3: "piano"}
PROGRAMS = {
    "durabus": [sys.executable, "-m", "durabus.cli.main"],
    "python": [sys.executable],
    "curl": ["curl", "--silent", "--show-error"],
}

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine"),
]


class Page:
    """The README, with a port that is free, and a copy of its folder."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
        text = (SHOP / "README.md").read_text(encoding="utf-8").replace(PORT, str(free_ports(1)[0]))
        self.folder = folder
        self.started, self.orders, self.looks, self.retry = re.findall(r"```console\n(.*?)```", text, re.DOTALL)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start what runs in a terminal of its own, and wait for its first line."""
        program, *words = shlex.split(command.removeprefix("$ "))
        process = subprocess.Popen(
            [*PROGRAMS[program], *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def run(self, command: str) -> str:
        """Run a command to its end, and return its output."""
        program, *words = shlex.split(command.removeprefix("$ "))
        done = subprocess.run(
            [*PROGRAMS[program], *words], cwd=self.folder, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_for(self, wanted: Counts) -> None:
        deadline = monotonic() + 30
        while (found := asyncio.run(self._counts())) != wanted:
            assert monotonic() < deadline, found
            sleep(0.05)

    async def _counts(self) -> Counts:
        store = await open_store(f"sqlite:///{self.folder}/shop.db")
        try:
            return await store.counts()
        finally:
            await store.close()


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "shop")


@pytest.fixture
def terminals(page: Page) -> Iterator[list[subprocess.Popen[str]]]:
    """The two workers and the web app."""
    with ExitStack() as stack:
        started = []
        for command in page.started.splitlines():
            process = page.start(command)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        yield started


def test_every_command_of_the_page_does_what_it_says(page: Page, terminals: list[subprocess.Popen[str]]) -> None:
    orders, mail, _web = terminals
    shown = re.findall(r"\$ (curl .+)\n(.+\n)", page.orders)
    assert [page.run(command) for command, _ in shown] == [printed for _, printed in shown]
    # Three orders and two receipts; the fourth order was rolled back with its event.
    page.wait_for(Counts(completed=4, completed_with_errors=1))
    listed, log, dead = map(page.run, page.looks.splitlines())
    assert len(re.findall(r"order\.placed|receipt\.due", listed)) == 5
    assert "the bank is busy" in log
    assert "over the limit" in dead
    source = page.folder / "shop.py"
    source.write_text(source.read_text(encoding="utf-8").replace("1000", "10_000"), encoding="utf-8")
    said = ended(orders)
    assert "order 1 charged on attempt 1\n" in said
    assert "order 2 charged on attempt 2\n" in said
    assert "order 3" not in said
    with page.start(page.started.splitlines()[0]) as restarted:
        page.run(page.retry.strip())
        page.wait_for(Counts(completed=6))
        assert "order 3 charged on attempt 1\n" in ended(restarted)
    receipts = re.findall(r"receipt for .+", ended(mail))
    assert receipts == [f"receipt for order {number}: {item}" for number, item in ORDERS.items()]


def ended(worker: subprocess.Popen[str]) -> str:
    """Stop a worker, and return what it has printed since its first line."""
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0
    return said
