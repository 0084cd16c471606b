"""Free loopback ports for servers that are restarted."""

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
    """Ports nobody listens on, below those the kernel gives to clients.

    Among those a client that keeps dialling a server which is just restarting could take the server's port away, or
    be connected to itself.
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
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of the last server that still linger are no hindrance.
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
    """What a kept folder remembers, so that its server comes back under the same URL."""

    kind: str
    ports: tuple[int, ...] = ()
    password: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(18))


class Folder:
    """Opened for one server at a time."""

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
        """Keep what the next start needs. Written in place, because the lock is on this very file."""
        self.record = record
        if self._lock is not None:
            os.pwrite(self._lock, msgspec.json.encode(record), 0)
            os.ftruncate(self._lock, len(msgspec.json.encode(record)))

    def close(self) -> None:
        """Give it up; a temporary one is removed."""
        if self._temporary:
            shutil.rmtree(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
