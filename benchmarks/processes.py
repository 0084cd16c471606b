"""Other processes: how they are started, told to begin, and asked for what they found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A ``benchmarks.child`` or its like: says ``ready``, begins at ``go``, answers JSON at its end or at ``stop``."""

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
        """Ask it to end and answer what it found."""
        self._write_line("stop")
        return self.found()

    def found(self) -> Any:
        """Wait for its end and answer what it found."""
        line = self._read_line()
        if self._process.wait(timeout=60) != 0 or not line:
            raise RuntimeError(f"benchmark process {self._kind!r} ended with {self._process.returncode}: see its error")
        return msgspec.json.decode(line)

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
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
