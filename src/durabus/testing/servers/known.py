"""The servers that durabus can start, by name. A server is imported only when it is needed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from durabus.errors import ServerError
from durabus.testing.servers.server import Server

SERVERS = {
    "postgresql": "durabus.testing.servers.postgresql:PostgreSQLServer",
    "redis": "durabus.testing.servers.redis:RedisServer",
    "nats": "durabus.testing.servers.nats:NatsServer",
    "kafka": "durabus.testing.servers.kafka:KafkaServer",
}


def make_server(kind: str, directory: Path | None = None) -> Server:
    """Return the server of this name. It is not started yet."""
    if kind not in SERVERS:
        raise ServerError(f"no server {kind!r}: known are {', '.join(SERVERS)}")
    module, name = SERVERS[kind].split(":")
    server: Server = getattr(import_module(module), name)(directory)
    return server
