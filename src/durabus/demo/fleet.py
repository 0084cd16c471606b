"""Starts, kills and stops the worker processes of the demo."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from durabus.demo.screen import WorkerRow
from durabus.demo.worker import GRACE, WorkerTotals

START_WITHIN = 30.0
LOG_TAIL = 1500


class WorkerDied(Exception):  # noqa: N818  (the name is a sentence)
    """A worker ended although the demo had not killed it."""


class WorkerProcess:
    """One ``python -m durabus.demo.worker``."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.worker_id = f"{socket.gethostname()}:{process.pid}"
        self.killed = False
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, *, store: str, lease: float, log: Path) -> Self:
        """Start the process. Call ``ready`` to wait until it serves the bus."""
        # Its own session: Ctrl-C in the terminal goes to the demo, which then closes the worker's stdin.
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "durabus.demo.worker", "--store", store, "--lease", str(lease)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    @property
    def line(self) -> WorkerRow:
        """The worker's row on the screen."""
        state = "working" if self.alive else "killed with kill -9" if self.killed else "stopped"
        return WorkerRow(name=self.name, worker_id=self.worker_id, pid=self.pid, state=state, alive=self.alive)

    async def ready(self) -> None:
        """Wait until the worker serves the bus."""
        try:
            async with asyncio.timeout(START_WITHIN):
                if await self._output().readline() == b"ready\n":
                    return
        except TimeoutError:
            raise WorkerDied(f"{self.name} was not ready within {START_WITHIN:g} s{self._last_words()}") from None
        raise WorkerDied(f"{self.name} did not start{self._last_words()}")

    def refuse_if_died(self) -> None:
        """Raise ``WorkerDied`` if the worker ended by itself."""
        if not self.alive and not self.killed:
            raise WorkerDied(f"{self.name} ended by itself with code {self._process.returncode}{self._last_words()}")

    async def kill(self) -> None:
        """Kill the process with SIGKILL: it runs no signal handler, no cleanup and no last write."""
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> WorkerTotals | None:
        """Stop the worker by closing its stdin. Returns its last line; None if there is none."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(2 * GRACE):
                words = await self._output().read()
                await self._process.wait()
        except TimeoutError:
            return None
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(words, type=WorkerTotals)
        return None

    async def end(self) -> None:
        """Make sure that the process has ended."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _output(self) -> asyncio.StreamReader:
        if self._process.stdout is None:
            raise WorkerDied(f"{self.name} has no stdout")
        return self._process.stdout

    def _last_words(self) -> str:
        text = self._log.read_text(errors="replace")[-LOG_TAIL:].strip() if self._log.exists() else ""
        return f":\n{text}" if text else ""
