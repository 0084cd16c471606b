"""Connections of the stand-alone server: how long one may be silent, and which one goes when there are too many."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Hashable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from durabus.server.problems import MEDIA_TYPE, Problem

MAX_CONNECTIONS = 1_000
FILES_FOR_OTHERS = 64
"""Of the files that the process may open: for the store, the log and the rest."""
SILENT_FOR = 5.0
"""Seconds until the first byte of a connection must be there."""


def room() -> int:
    """How many connections the server takes."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = MAX_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed - FILES_FOR_OTHERS
    return max(min(MAX_CONNECTIONS, free), 1)


class IdleConnections:
    """The connections without a request, by peer, those that are idle longest first.

    When the server is full, the peer that has most of them loses one. A limit for each peer would be wrong behind a
    proxy, which is one peer for everybody.
    """

    def __init__(self) -> None:
        self._by_peer: dict[Hashable, dict[IdleAware, None]] = {}

    def add(self, connection: IdleAware) -> None:
        """It has no request now."""
        self._by_peer.setdefault(connection.peer, {})[connection] = None

    def discard(self, connection: IdleAware) -> None:
        """It has a request, or is gone."""
        idle = self._by_peer.get(connection.peer, {})
        idle.pop(connection, None)
        if not idle:
            self._by_peer.pop(connection.peer, None)

    def end_one(self) -> bool:
        """Close the connection that is idle longest of the peer that has most of them; False if none is idle."""
        if not self._by_peer:
            return False
        greediest = max(self._by_peer.values(), key=len)
        next(iter(greediest)).end()
        return True


class IdleAware(H11Protocol):
    """Closes a connection whose first byte, or whose headers, take too long, however slowly they trickle."""

    idle: IdleConnections
    limit: int
    header_timeout: float
    peer: Hashable = None
    _late: asyncio.TimerHandle | None = None
    _heard = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for it, and expect its first byte."""
        while len(self.connections) >= self.limit - 1 and self.idle.end_one():
            pass
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else None
        self.idle.add(self)
        self._expect_within(min(SILENT_FOR, self.header_timeout))

    def data_received(self, data: bytes) -> None:
        """Headers that are whole are a request; until then the connection stays idle."""
        first, self._heard = not self._heard, True
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._in_time()
            self.idle.discard(self)
        elif first or self._late is None:
            self._expect_within(self.header_timeout)

    def on_response_complete(self) -> None:
        """Without a further request it is idle again."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.idle.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._in_time()
        self.idle.discard(self)
        super().connection_lost(exc)

    def end(self) -> None:
        """Make room for another one: from now on it does not count."""
        self.idle.discard(self)
        self.connections.discard(self)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Say as a problem document what the parser refuses. ``sys.exception``: the caller keeps it to itself."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = Problem(status, f"this is not a request that the server reads: {error or msg}").body()
            length, kind = str(len(body)).encode(), MEDIA_TYPE.encode()
            headers = [(b"content-type", kind), (b"content-length", length), (b"connection", b"close")]
            answer: list[Any] = [h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()]
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in answer))
        self.transport.close()

    def _expect_within(self, seconds: float) -> None:
        self._in_time()
        self._late = self.loop.call_later(seconds, self.transport.close)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def protocol(header_timeout: float) -> type[IdleAware]:
    """The protocol of one server: what its connections share are its class's fields."""
    fields = {"idle": IdleConnections(), "limit": room(), "header_timeout": header_timeout}
    return type("OneServersProtocol", (IdleAware,), fields)
