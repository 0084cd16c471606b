"""Other processes: how a benchmark starts them, lets them begin, and reads their results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A process such as ``benchmarks.child``: it prints ``ready``, begins at ``go``, and prints JSON at its end."""

    def __init__(
        self, kind: str, *arguments: str, module: str = "benchmarks.child", python: str = sys.executable
    ) -> None:
        self._kind = kind
        self._process = subprocess.Popen(
            [python, "-m", module, kind, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def wait_until_ready(self) -> None:
        line = self._read_line()
        if line != "ready":
            raise RuntimeError(
                f"benchmark process {self._kind!r} said {line!r} instead of 'ready': see its error above"
            )

    def go(self) -> None:
        self._write_line("go")

    def stop(self) -> Any:
        """Ask the process to end. Returns its result."""
        self._write_line("stop")
        return self.found()

    def found(self) -> Any:
        """Wait for the end of the process. Returns its result."""
        line = self._read_line()
        if self._process.wait(timeout=60) != 0 or not line:
            raise RuntimeError(f"benchmark process {self._kind!r} ended with {self._process.returncode}: see its error")
        return msgspec.json.decode(line)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is dead."""
        self._process.kill()
        self._process.wait()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _write_line(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
