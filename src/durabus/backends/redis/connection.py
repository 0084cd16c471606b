"""Connections to the server, and commands as the bytes that go over them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from durabus.backends.redis.address import Address

CLIENT_NAME = "durabus"


class Connector:
    """Makes connections to where the keys are: on a cluster that may be another node than the URL names."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._moved: tuple[str, int] | None = None

    def follow(self, place: tuple[str, int]) -> None:
        """Connect there from now on. An empty host means the one that said so."""
        host = place[0] or self.address.options.get("host", "localhost")
        self._moved = (host, place[1])

    async def connect(self) -> AbstractConnection:
        """A new connection, ready for commands. Raises ``RedisError`` or ``OSError``."""
        options = dict(self.address.options)
        make: type[AbstractConnection] = options.pop("connection_class", Connection)
        if self._moved is not None:
            options["host"], options["port"] = self._moved
        connection = make(
            **{"client_name": CLIENT_NAME, "socket_keepalive": True, **options},
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
        )
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError):
            # the node it moved to may be gone: the URL is asked again where the keys are now
            self._moved = None
            raise
        return connection


async def disconnect(connection: AbstractConnection | None) -> None:
    """Let a connection go; it may be in any state."""
    if connection is not None:
        await asyncio.shield(connection.disconnect(nowait=True))


def command(*parts: str | bytes | int) -> bytes:
    """A command as the protocol writes it."""
    given = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(given) + arguments(given)


def arguments(parts: Iterable[bytes]) -> bytes:
    """Arguments as the protocol writes them."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


async def ask(connection: AbstractConnection, *parts: str | bytes | int) -> Any:
    """One command and its answer. Raises ``RedisError``."""
    await connection.send_packed_command([command(*parts)], check_health=False)
    return await connection.read_response()
