"""A server's ports, its folder and its process."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from durabus.errors import ServerError

LOOPBACK = "127.0.0.1"
LOWEST = 15_000
CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_FIRST_CLIENT_PORT = 32_768
TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return ports that no program listens on, below the ports that the operating system gives to clients.

    A client that connects again and again while a server restarts could otherwise get the server's port as its own.
    """
    found: list[int] = []
    candidates = range(LOWEST, max(_first_client_port(), LOWEST + 1000))
    for port in random.sample(candidates, TRIES):
        if len(found) == count:
            return found
        if is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports among {TRIES} tried from {candidates.start} to {candidates.stop - 1}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this option, too: old connections of the last server do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_client_port() -> int:
    return int(CLIENT_PORTS.read_text().split()[0]) if CLIENT_PORTS.exists() else USUAL_FIRST_CLIENT_PORT


RECORD_FILE = "durabus-server.json"


class FolderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The file in a folder that lets its server start again under the same URL."""

    kind: str
    ports: tuple[int, ...] = ()
    password: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(18))


class Folder:
    """The folder of a server. One server at a time can open it."""

    def __init__(self, kind: str, given: Path | None) -> None:
        self._temporary = given is None
        self.path = Path(tempfile.mkdtemp(prefix=f"durabus-{kind}-")) if given is None else given.absolute()
        self._lock: int | None = None
        try:
            self.record = self._open(kind)
        except BaseException:
            self.close()
            raise

    def _open(self, kind: str) -> FolderRecord:
        file = self.path / RECORD_FILE
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not file.exists() and any(self.path.iterdir()):
                raise ServerError(f"{self.path} is not empty and no server of durabus: name a new or an empty folder")
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerError(f"{self.path} is in use by another server: stop it, or name another folder") from None
        except OSError as error:
            raise ServerError(f"cannot use the folder {self.path}: {error.strerror or error}") from error
        return self._read(kind)

    def _read(self, kind: str) -> FolderRecord:
        text = (self.path / RECORD_FILE).read_bytes()
        if not text:
            return FolderRecord(kind=kind)
        try:
            record = msgspec.json.decode(text, type=FolderRecord)
        except msgspec.MsgspecError as error:
            raise ServerError(f"{self.path / RECORD_FILE} cannot be read ({error}): remove the folder") from error
        if record.kind != kind:
            raise ServerError(f"{self.path} holds a {record.kind} server, not {kind}: name another folder")
        return record

    def remember(self, record: FolderRecord) -> None:
        """Write what the next start needs. The file is not replaced, because it holds the lock."""
        self.record = record
        if self._lock is not None:
            os.pwrite(self._lock, msgspec.json.encode(record), 0)
            os.ftruncate(self._lock, len(msgspec.json.encode(record)))

    def close(self) -> None:
        """Release the folder. A temporary folder is removed."""
        if self._temporary:
            shutil.rmtree(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


LAUNCH = Path(__file__).with_name("launch.py")

_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="durabus-servers")
"""Linux ends the server when the *thread* that started it ends. This thread lives as long as the process."""


class ServerProcess:
    """A running server with the processes that it starts."""

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
        """The id of the server's first process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the server runs."""
        return self._process.poll()

    def wait(self, within: float) -> int:
        """Wait for the end of a command and return its exit code."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise ServerError(f"did not end within {within:g} s and was killed") from None
        finally:
            self.end(signal.SIGKILL, within)

    def end(self, number: signal.Signals, within: float) -> None:
        """Send a signal and wait until all processes are gone. A repeat, or a call after the end, does nothing."""
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
