"""Connections of the stand-alone server: how long one may be silent, and which one it closes when it is full."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Hashable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from durabus.http.asgi import LISTEN, Receive, Scope, Send
from durabus.http.peers import network
from durabus.http.problems import Code, Problem, encoded_headers, send_problem

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


async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    """The app of a connection for which there is no room."""
    detail = "all connections of this server are in use: try again, or start a further server on the same store"
    await send_problem(Problem(503, detail, {"Connection": "close"}), send)


class Closable:
    """Connections that a full server may close, by peer, those that are here longest first.

    The peer that has most of them loses one. A fixed limit for each peer would be wrong behind a proxy, which is one
    peer for everybody.
    """

    def __init__(self) -> None:
        self._by_peer: dict[Hashable, dict[Connection, None]] = {}

    def add(self, connection: Connection) -> None:
        """One that is here already keeps its place."""
        self._by_peer.setdefault(connection.peer, {})[connection] = None

    def discard(self, connection: Connection) -> None:
        """It may not be closed any more, or is gone."""
        same_peer = self._by_peer.get(connection.peer, {})
        same_peer.pop(connection, None)
        if not same_peer:
            self._by_peer.pop(connection.peer, None)

    def close_one(self) -> bool:
        """Close the connection that is here longest of the peer that has most of them; False if there is none."""
        return self._close_one_of_more_than(0)

    def close_one_for(self, newcomer: Hashable) -> bool:
        """The same if that peer has more than the newcomer's peer will have: equals do not push each other out."""
        return self._close_one_of_more_than(len(self._by_peer.get(newcomer, ())) + 1)

    def _close_one_of_more_than(self, number: int) -> bool:
        greediest = max(self._by_peer.values(), key=len, default={})
        if len(greediest) <= number:
            return False
        next(iter(greediest)).end()
        return True


class Connection(H11Protocol):
    """Closes a connection whose first byte, or whose headers, take too long, however slowly they trickle.

    It waits for its peer until a request is whole, headers and body, and again while the peer does not read the
    response. Only in between does the server work for it, or let it wait for events: ``listening``.
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
        """Make room for it, and expect its first byte. Without room its request is refused."""
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
        """Until the headers are whole, and while a body comes that nobody reads, time runs."""
        first, self._heard = not self._heard, True
        super().data_received(data)
        self._take_turn()
        if self._has_request():
            self._in_time()  # the app times the body
        elif first or self._late is None:
            self._expect_within(self.header_timeout)

    def handle_events(self) -> None:
        """Let the app say of a request that it only waits for events. The app runs later."""
        super().handle_events()
        if self.scope is not None:
            self.scope[LISTEN] = self.listen  # type: ignore[literal-required]

    def listen(self, *, begin: bool) -> None:
        """The request waits for events from now on, or does not any more."""
        self._listens = begin
        self._take_turn()

    def on_response_complete(self) -> None:
        """Without a further request it waits again. A body that was not needed must end soon."""
        self._listens = False
        super().on_response_complete()
        self._take_turn()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._expect_within(self.header_timeout)

    def pause_writing(self) -> None:
        """The peer does not read: the response waits for it."""
        super().pause_writing()
        self._take_turn()

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        self._take_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._in_time()
        super().connection_lost(exc)
        self._take_turn()

    def end(self) -> None:
        """Make room for another one: from now on it does not count."""
        self.connections.discard(self)
        self._take_turn()
        self.transport.abort()

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _take_turn(self) -> None:
        works = self._has_request() and not self.cycle.more_body and not self.flow.write_paused
        here = self in self.connections
        for table, belongs in ((self.waiting, not works), (self.listening, works and self._listens)):
            if here and belongs:
                table.add(self)
            else:
                table.discard(self)

    def send_400_response(self, msg: str) -> None:
        """Say as a problem document what the parser refuses. ``sys.exception``: the caller keeps it to itself."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
        problem = Problem(
            hint,
            f"this is not a request that the server reads: {error or msg}",
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


def protocol(header_timeout: float) -> type[Connection]:
    """The protocol of one server: what its connections share are its class's fields."""
    fields = {"waiting": Closable(), "listening": Closable(), "limit": room(), "header_timeout": header_timeout}
    return type("OneServersProtocol", (Connection,), fields)
