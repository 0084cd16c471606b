"""The processes that the demo starts, kills and stops. They end with the demo; on Linux even if the demo is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from durabus.testing.servers.process import LAUNCH

START_WITHIN = 30.0
STOP_WITHIN = 20.0
LOG_TAIL = 1500


class ProcessDied(Exception):  # noqa: N818  (the name is a sentence)
    """A process ended although the demo had not killed it, or did not start."""


class DemoProcess:
    """A running worker or dashboard."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.worker_id = f"{socket.gethostname()}:{process.pid}"
        """The name under which a worker claims events."""
        self.first_line = ""
        self._killed = False
        self._process = process
        self._log = log

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    @property
    def state(self) -> str:
        """The state for the screen."""
        return "working" if self.alive else "killed with kill -9" if self._killed else "stopped"

    async def ready(self) -> None:
        """Wait for the first line of its output, which says that it is ready."""
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        with suppress(TimeoutError):
            async with asyncio.timeout(START_WITHIN):
                self.first_line = (await self._process.stdout.readline()).decode().strip()
        if not self.first_line:
            raise ProcessDied(f"{self.name} did not start within {START_WITHIN:g} s{self._last_words()}")

    def refuse_if_died(self) -> None:
        """Raise ``ProcessDied`` if it ended by itself."""
        if not self.alive and not self._killed:
            raise ProcessDied(f"{self.name} ended by itself with code {self._process.returncode}{self._last_words()}")

    async def kill(self) -> None:
        """Kill it with SIGKILL: it runs no signal handler, no cleanup and no last write."""
        self._killed = True
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> bytes:
        """Stop it with SIGTERM. Returns the rest of its output; nothing if it does not stop in time."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN):
                return (await self._process.communicate())[0]
        return b""

    def _last_words(self) -> str:
        """The end of its log, after a colon."""
        text = self._log.read_text(errors="replace")[-LOG_TAIL:].strip()
        return f":\n{text}" if text else ""


@asynccontextmanager
async def durabus_process(name: str, *command: str, folder: Path, store: str) -> AsyncIterator[DemoProcess]:
    """Yields the process of a ``durabus`` command on this store. Its log is in ``folder``."""
    log = folder / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as stderr:
        place = {"DURABUS_STORE": store}
        async with started("durabus.cli.main", *command, out=PIPE, err=stderr, environment=place) as process:
            yield DemoProcess(name, process, log)


@asynccontextmanager
async def started(
    module: str, *words: str, out: IO[str] | int | None, err: IO[bytes] | None = None, environment: Mapping[str, str]
) -> AsyncIterator[Process]:
    """Yields the process of ``python -m MODULE``. It has ended after the context."""
    launch = (sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), str(int(signal.SIGKILL)), "keep")
    process = await asyncio.create_subprocess_exec(
        *(*launch, sys.executable, "-m", module, *words),
        stdin=DEVNULL,
        stdout=out,
        stderr=err,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C in the terminal goes to the demo, which then ends this process
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also ends a Java that it has started
        await process.wait()
