"""One server process: in a session of its own, and never left behind by the process that started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from durabus.errors import ServerError

LAUNCH = Path(__file__).with_name("launch.py")

_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="durabus-servers")
"""Linux ends such a child when the *thread* that made it ends. This one lives as long as the process."""


class ServerProcess:
    """A running server with whatever processes it starts itself."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        end_signal: signal.Signals,
        hide_root: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        terms = [str(os.getpid()), str(int(end_signal)), "hide" if hide_root and os.geteuid() == 0 else "keep"]
        # Every process of the server inherits the writing end, so the reading end tells when the last one is gone.
        gone, held = os.pipe()
        self._gone: int | None = gone
        try:
            with log.open("ab") as output:
                self._process = _SPAWNER.submit(
                    subprocess.Popen,
                    [sys.executable, "-I", "-S", str(LAUNCH), *terms, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(held,),
                    env={**os.environ, **(environment or {})},
                ).result()
        except BaseException:
            os.close(gone)
            raise
        finally:
            os.close(held)

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, within: float) -> int:
        """Let a command that ends by itself do so; answers its exit code."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise ServerError(f"did not end within {within:g} s and was killed") from None
        finally:
            self.end(signal.SIGKILL, within)

    def end(self, number: signal.Signals, within: float) -> None:
        """Signal it and wait until all its processes are gone. May be repeated, and called after it ended by itself."""
        self._process.send_signal(number)
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ServerError(f"did not end within {within:g} s of {number.name} and was killed") from None
        finally:
            self._wait_for_the_rest(within)

    def _wait_for_the_rest(self, within: float) -> None:
        if self._gone is None:
            return
        ready, _, _ = select.select([self._gone], [], [], within)
        os.close(self._gone)
        self._gone = None
        if not ready:
            raise ServerError(f"left processes behind that still run after {within:g} s")
