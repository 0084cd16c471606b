"""The processes that the demo starts, kills and stops. They end with the demo, even if the demo is killed."""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import socket
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Self

START_WITHIN = 30.0
STOP_WITHIN = 10.0
LOG_TAIL = 1500


class ProcessDied(Exception):  # noqa: N818  (the name is a sentence)
    """A process ended although the demo had not killed it, or did not start."""


class DemoProcess:
    """One process of the demo, as an async context: it starts with the context and has ended after it."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.killed = False
        self._command = command
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._started: Process | None = None

    @classmethod
    def durabus(cls, name: str, *command: str, log: Path, store: str) -> Self:
        """A ``durabus`` command on this store, which also ends when its stdin closes."""
        return cls(name, (__name__, *command), log=log, environment={"DURABUS_STORE": store})

    async def __aenter__(self) -> Self:
        # Its own session: Ctrl-C in the terminal goes to the demo, which then ends this process.
        with self._log.open("wb") as stderr:
            self._started = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *self._command),
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                env=self._environment,
                start_new_session=True,
            )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also ends a Java that it has started
        await self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def worker_id(self) -> str:
        """The name under which a worker claims events."""
        return f"{socket.gethostname()}:{self.pid}"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    @property
    def state(self) -> str:
        """The state for the screen."""
        return "working" if self.alive else "killed with kill -9" if self.killed else "stopped"

    async def ready(self) -> str:
        """Wait for the first line of its output, which says that it is ready."""
        try:
            async with asyncio.timeout(START_WITHIN):
                line = (await self.output.readline()).decode().strip()
        except TimeoutError:
            raise ProcessDied(f"{self.name} was not ready within {START_WITHIN:g} s{self.last_words()}") from None
        if not line:
            raise ProcessDied(f"{self.name} did not start{self.last_words()}")
        return line

    def refuse_if_died(self) -> None:
        """Raise ``ProcessDied`` if it ended by itself."""
        if not self.alive and not self.killed:
            raise ProcessDied(f"{self.name} ended by itself with code {self._process.returncode}{self.last_words()}")

    async def kill(self) -> None:
        """Kill it with SIGKILL: it runs no signal handler, no cleanup and no last write."""
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> bytes:
        """Stop it with SIGTERM. Returns the rest of its output; nothing if it does not stop in time."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * STOP_WITHIN):
                words = await self.output.read()
                await self._process.wait()
                return words
        return b""

    async def send(self, line: str) -> None:
        """Write a line to its stdin. If it has ended, its output or its log says why."""
        assert self._process.stdin is not None  # noqa: S101  (it is a pipe)
        with suppress(ConnectionError):
            self._process.stdin.write(f"{line}\n".encode())
            await self._process.stdin.drain()

    async def ended(self) -> int:
        """Wait for its end. Returns its exit code."""
        return await self._process.wait()

    @property
    def output(self) -> asyncio.StreamReader:
        """What it prints."""
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        return self._process.stdout

    def last_words(self) -> str:
        """The end of its log, after a colon."""
        text = self._log.read_text(errors="replace")[-LOG_TAIL:].strip()
        return f":\n{text}" if text else ""

    @property
    def _process(self) -> Process:
        assert self._started is not None  # noqa: S101  (the context has begun)
        return self._started


def main() -> None:
    """Run ``python -m durabus.demo.processes COMMAND``: a ``durabus`` command that stops when its stdin closes."""
    threading.Thread(target=_stop_with_stdin, daemon=True).start()
    runpy.run_module("durabus.cli.main", run_name="__main__")


def _stop_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(STOP_WITHIN)
    os._exit(1)


if __name__ == "__main__":
    main()
