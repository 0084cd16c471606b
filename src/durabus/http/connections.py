"""Connections of the stand-alone server: how long one may be silent, and which one a full server closes."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Hashable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from durabus.http.asgi import LISTEN, AsgiScope, Receive, Send
from durabus.http.auth.peers import network
from durabus.http.problems import Code, Problem, encoded_headers, send_problem

MAX_CONNECTIONS = 1_000
FILES_FOR_OTHERS = 64
"""Open files that the server leaves for the store, the log and everything else."""
SILENT_FOR = 5.0
"""Seconds within which the first byte of a connection must arrive."""


def room() -> int:
    """Maximum number of connections that the server accepts."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = MAX_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed - FILES_FOR_OTHERS
    return max(min(MAX_CONNECTIONS, free), 1)


async def refuse(_scope: AsgiScope, _receive: Receive, send: Send) -> None:
    """The ASGI app of a connection that the full server refuses."""
    detail = "all connections of this server are in use: try again, or start a further server on the same store"
    await send_problem(Problem(503, detail, {"Connection": "close"}), send)


class Closable:
    """Connections that a full server may close, grouped by peer, oldest first.

    The peer with the most connections loses one. A fixed limit per peer would be wrong behind a proxy, because all
    clients of a proxy are one peer.
    """

    def __init__(self) -> None:
        self._by_peer: dict[Hashable, dict[HttpConnection, None]] = {}

    def add(self, connection: HttpConnection) -> None:
        """Add a connection. A connection that was added before keeps its place."""
        self._by_peer.setdefault(connection.peer, {})[connection] = None

    def discard(self, connection: HttpConnection) -> None:
        """Remove a connection, because it must not be closed any more or is closed."""
        same_peer = self._by_peer.get(connection.peer, {})
        same_peer.pop(connection, None)
        if not same_peer:
            self._by_peer.pop(connection.peer, None)

    def close_one(self) -> bool:
        """Close the oldest connection of the peer with the most connections. Returns False if there is none."""
        return self._close_one_of_more_than(0)

    def close_one_for(self, newcomer: Hashable) -> bool:
        """Do what ``close_one`` does, but only if its peer has more connections than the newcomer's peer will have.

        So two peers with equal numbers do not close each other's connections.
        """
        return self._close_one_of_more_than(len(self._by_peer.get(newcomer, ())) + 1)

    def _close_one_of_more_than(self, number: int) -> bool:
        greediest = max(self._by_peer.values(), key=len, default={})
        if len(greediest) <= number:
            return False
        next(iter(greediest)).end()
        return True


class HttpConnection(H11Protocol):
    """A connection that closes itself if its first byte or its headers take too long to arrive.

    It is in ``waiting`` while the server waits for the peer: until headers and body of a request have arrived, and
    while the peer does not read the response. It is in ``listening`` while its request waits for events.
    """

    waiting: Closable
    listening: Closable
    limit: int
    header_timeout: float
    peer: Hashable = None
    _late: asyncio.TimerHandle | None = None
    _heard = False
    _listens = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close other connections if the server is full; refuse the request if that does not help."""
        super().connection_made(transport)
        self.peer = network(self.client[0]) if self.client else None
        while len(self.connections) > self.limit and (
            self.waiting.close_one() or self.listening.close_one_for(self.peer)
        ):
            pass
        if len(self.connections) > self.limit:
            self.app = refuse
        self.waiting.add(self)
        self._expect_within(min(SILENT_FOR, self.header_timeout))

    def data_received(self, data: bytes) -> None:
        """Limit the time until the headers are complete, and while a body arrives that the app does not read."""
        first, self._heard = not self._heard, True
        super().data_received(data)
        self._classify()
        if self._has_request():
            self._in_time()  # the app times the body
        elif first or self._late is None:
            self._expect_within(self.header_timeout)

    def handle_events(self) -> None:
        """Let the app report that a request only waits for events. The app runs later."""
        super().handle_events()
        if self.scope is not None:
            self.scope[LISTEN] = self.listen  # type: ignore[literal-required]

    def listen(self, *, begin: bool) -> None:
        """Record that the request waits for events from now on, or no longer does."""
        self._listens = begin
        self._classify()

    def on_response_complete(self) -> None:
        """Wait for the next request. A body that the app did not read must end soon."""
        self._listens = False
        super().on_response_complete()
        self._classify()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._expect_within(self.header_timeout)

    def pause_writing(self) -> None:
        """The peer does not read, so the response waits for the peer."""
        super().pause_writing()
        self._classify()

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        self._classify()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove this connection from all tables."""
        self._in_time()
        super().connection_lost(exc)
        self._classify()

    def end(self) -> None:
        """Close this connection to make room for another. It no longer counts."""
        self.connections.discard(self)
        self._classify()
        self.transport.abort()

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _classify(self) -> None:
        works = self._has_request() and not self.cycle.more_body and not self.flow.write_paused
        here = self in self.connections
        for table, belongs in ((self.waiting, not works), (self.listening, works and self._listens)):
            if here and belongs:
                table.add(self)
            else:
                table.discard(self)

    def send_400_response(self, msg: str) -> None:
        """Send a problem document that says what the parser refused.

        ``sys.exception`` returns the parser's error, which the caller does not pass on.
        """
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
        problem = Problem(
            hint,
            f"the server cannot read this request: {error or msg}",
            {"Connection": "close"},
            code=Code.UNSUPPORTED_ENCODING if hint == HTTPStatus.NOT_IMPLEMENTED else None,
        )
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            phrase = HTTPStatus(hint).phrase.encode()
            reply: list[Any] = [
                h11.Response(status_code=hint, headers=encoded_headers(problem), reason=phrase),
                h11.Data(problem.body()),
                h11.EndOfMessage(),
            ]
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in reply))
        self.transport.close()

    def _expect_within(self, seconds: float) -> None:
        self._in_time()
        self._late = self.loop.call_later(seconds, self.transport.close)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def protocol(header_timeout: float) -> type[HttpConnection]:
    """A protocol class for one server. Its class attributes hold what the server's connections share."""
    fields = {"waiting": Closable(), "listening": Closable(), "limit": room(), "header_timeout": header_timeout}
    return type("OneServersProtocol", (HttpConnection,), fields)
