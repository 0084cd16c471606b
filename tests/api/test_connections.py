"""The stand-alone server and what comes over its sockets: large headers, ambiguous requests, silent connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import cast

import httpx2
import msgspec
import pytest
from tests.api.support import Server
from tests.api.test_limits import raw
from tests.worker.support import until

from durabus import open_store
from durabus.http import Settings, connections, create_app
from durabus.http.auth.peers import network
from durabus.http.connections import Closable, HttpConnection
from durabus.http.middleware import MAX_HEADER_BYTES
from durabus.http.serving import listen, serve

SILENT = 1_050
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("memory://") as made:
        yield made


def padded(size: int, *, end: bytes = b"Connection: close\r\n\r\n") -> bytes:
    """A request whose headers have this size, as the server counts it: without the method and the version."""
    head = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Padding: "
    uncounted = len(b"GET ") + len(b" HTTP/1.1\r\n") + len(b"\r\n")
    return head + b"a" * (size - len(head) - len(end) - 2 + uncounted) + b"\r\n" + end


def problem(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head, answer
    found: dict[str, object] = msgspec.json.decode(body)
    return found


def test_headers_at_the_limit_are_read(server: Server) -> None:
    assert raw(server, padded(MAX_HEADER_BYTES)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("size", [MAX_HEADER_BYTES + 1, 20_000, 60_000, 200_000])
def test_headers_over_the_limit_are_refused_however_they_come(server: Server, size: int) -> None:
    whole = padded(size)
    for parts in ((whole,), (whole[:9_000], whole[9_000:])):
        answer = raw(server, *parts)
        assert answer.startswith(b"HTTP/1.1 431"), answer
        assert b"connection: close" in answer.lower()
        assert problem(answer)["status"] == 431


def test_a_long_address_counts_as_headers(server: Server) -> None:
    address = b"/livez?" + b"a" * MAX_HEADER_BYTES
    assert raw(server, b"GET " + address + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "both",
    [b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\ncontent-length: 4\r\n"],
)
def test_a_request_with_two_lengths_is_refused_and_what_hides_behind_it_is_not_read(
    server: Server, both: bytes
) -> None:
    head = b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    answer = raw(server, head + both + b"\r\n0\r\n\r\n" + LIVEZ)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert "Transfer-Encoding" in str(problem(answer)["detail"])


def test_what_is_no_http_is_refused_with_a_problem(server: Server) -> None:
    answer = raw(server, b"nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert problem(answer)["status"] == 400


def test_a_proxy_that_speaks_http_1_0_is_refused_without_tokens(server: Server) -> None:
    answer = raw(server, b"GET /events HTTP/1.0\r\nHost: 127.0.0.1:8484\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401")
    assert "proxy" in str(problem(answer)["detail"])


@contextmanager
def silent(port: int, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    held = [socket.create_connection(("127.0.0.1", port), 30, (source, 0)) for _ in range(count)]
    try:
        yield held
    finally:
        for connection in held:
            connection.close()


def half_a_body(address: bytes = b"/livez", headers: bytes = b"") -> bytes:
    head = b"POST " + address + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head + headers + b"Content-Length: 100\r\n\r\n{"


HOSTILE: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "half a header": (b"GET /livez HTTP/1.1\r\nHost: 12", b""),
    "half a body": (half_a_body(), b""),
    "half a body of a request that was refused": (half_a_body(b"/events", b"Via: 1.1 x\r\n"), b"a"),
    "kept alive after a request": (LIVEZ, b"\r\n"),
}
"""What each connection sends before and after the server's reply; an empty second part waits for no reply."""


@pytest.mark.parametrize(("form", "addresses"), [*((form, 1) for form in HOSTILE), ("silent", 50), ("half a body", 50)])
def test_a_thousand_hostile_connections_stop_no_other_client(server: Server, form: str, addresses: int) -> None:
    """They stop neither a client at their address, such as one behind the same proxy, nor one at another address."""
    sent, after_reply = HOSTILE[form]
    with ExitStack() as stack:
        held = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), 30, (f"127.0.0.{number % addresses + 2}", 0))
            )
            for number in range(SILENT)
        ]
        for connection in held:
            with suppress(ConnectionError):  # the server may close it whenever it needs room
                connection.sendall(sent)
        for connection in held if after_reply else ():
            with suppress(ConnectionError):
                if connection.recv(1_000):
                    connection.sendall(after_reply)
        seconds = [served_within(server.port, source) for source in ("127.0.0.2", "127.0.0.2", "127.0.0.1")]
        assert max(seconds[1:]) < 1, "the first one waits until the server has read all of the above"


def served_within(port: int, source: str) -> float:
    begun = monotonic()
    with silent(port, 1, source) as (client,):
        client.sendall(LIVEZ)
        assert client.recv(15) == b"HTTP/1.1 200 OK"
    return monotonic() - begun


def test_a_thousand_silent_connections_close_neither_a_long_poll_nor_another_peers_connection(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 30) as busy, httpx2.Client() as client:
        poll = b'{"worker_id": "w:1", "wait": 20}'
        head = b"POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        busy.sendall(head + b"Content-Length: %d\r\n\r\n" % len(poll) + poll)
        served_within(server.port, "127.0.0.1")  # so the server has read the poll, which was sent before
        with silent(server.port, SILENT), silent(server.port, 1, "127.0.0.2") as (other,), silent(server.port, 20):
            other.sendall(LIVEZ)
            assert other.recv(15) == b"HTTP/1.1 200 OK", "another peer keeps its connection"
            begun = monotonic()
            for _ in range(20):
                published = client.post(f"{server.url}/events", json={"title": "a"}, headers={"Connection": "close"})
                assert published.status_code == 201
            assert monotonic() - begun < 10
            assert busy.recv(15) == b"HTTP/1.1 200 OK", "who waits for work keeps the connection"


@asynccontextmanager
async def small_server(monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1", **limits: float) -> AsyncIterator[int]:
    for name, value in limits.items():
        monkeypatch.setattr(connections, name, value)
    app = create_app(await open_store("memory://"), settings=Settings(header_timeout=60.0, body_timeout=60.0))
    ready = asyncio.Event()
    with listen(host, 0) as listening:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(serve(app, listening, stop_within=1, ready=ready.set))
            await ready.wait()
            yield listening.getsockname()[1]
            running.cancel()


async def opened(
    port: int, *, ask: bool, host: str = "127.0.0.1", source: str | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port, local_addr=None if source is None else (source, 0))
    if ask:
        writer.write(LIVEZ)
        assert (await reader.readuntil(b'{"status":"alive"}')).startswith(b"HTTP/1.1 200")
    return reader, writer


async def test_a_connection_that_says_nothing_is_closed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes it long before the limit for headers that have begun."""
    async with small_server(monkeypatch, SILENT_FOR=0.1) as port, asyncio.timeout(20):
        reader, writer = await opened(port, ask=False)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("ask", [False, True], ids=["silent", "idle after a request"])
async def test_a_full_server_closes_the_connection_that_is_idle_longest(
    monkeypatch: pytest.MonkeyPatch, ask: bool
) -> None:
    async with small_server(monkeypatch, MAX_CONNECTIONS=8) as port, asyncio.timeout(20):
        held = [await opened(port, ask=ask) for _ in range(8)]
        _, last = await opened(port, ask=True)
        assert await held[0][0].read() == b""
        for reader, writer in held[1:]:
            writer.write(LIVEZ)
            assert (await reader.readuntil(b'{"status":"alive"}')).startswith(b"HTTP/1.1 200")
        for writer in (last, *(writer for _, writer in held)):
            writer.close()


@pytest.mark.parametrize("form", HOSTILE)
async def test_a_full_server_closes_whatever_waits_for_its_client(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    heard: list[bytes] = []
    receive = HttpConnection.data_received

    def note(connection: HttpConnection, data: bytes) -> None:
        receive(connection, data)
        heard.append(data)

    monkeypatch.setattr(HttpConnection, "data_received", note)
    parts = [part for part in HOSTILE[form] if part]
    async with small_server(monkeypatch, MAX_CONNECTIONS=3, SILENT_FOR=60.0) as port, asyncio.timeout(20):
        held = [await opened(port, ask=False) for _ in range(3)]
        for number, part in enumerate(parts, start=1):
            for reader, writer in held:
                if number > 1:
                    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 ")
                writer.write(part)
            await until(lambda: len(heard) == number * len(held))  # noqa: B023  (it ends before the next number)
        _, last = await opened(port, ask=True)
        for writer in (last, *(writer for _, writer in held)):
            writer.close()


async def test_a_full_server_on_ipv6_serves_the_next_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small_server(monkeypatch, "::1", MAX_CONNECTIONS=4) as port, asyncio.timeout(20):
        held = [await opened(port, ask=False, host="::1") for _ in range(10)]
        held.append(await opened(port, ask=True, host="::1"))
        for _, writer in held:
            writer.close()


def test_a_peer_is_an_ipv6_network_or_an_ipv4_address() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:203.0.113.7") == network("203.0.113.7") != network("203.0.113.8")
    assert network("") == ""


class Held:
    """A connection as the table of waiting connections sees it."""

    def __init__(self, waiting: Closable, address: str) -> None:
        self.peer = network(address)
        self.ended = False
        self._waiting = waiting
        waiting.add(cast("HttpConnection", self))

    def end(self) -> None:
        self.ended = True
        self._waiting.discard(cast("HttpConnection", self))


def test_many_addresses_of_one_network_do_not_push_out_a_peer_with_two_connections() -> None:
    waiting = Closable()
    two = [Held(waiting, "2001:db8:1::1") for _ in range(2)]
    many = [Held(waiting, f"2001:db8:2::{number:x}") for number in range(20)]
    assert all(waiting.close_one() for _ in range(18))
    assert not any(held.ended for held in two)
    assert [held.ended for held in many] == [True] * 18 + [False] * 2, "the one that waits longest goes first"


async def test_a_full_server_drops_a_response_that_its_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalled = set[HttpConnection]()
    pause = HttpConnection.pause_writing

    def note(connection: HttpConnection) -> None:
        pause(connection)
        stalled.add(connection)

    monkeypatch.setattr(HttpConnection, "pause_writing", note)
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with small_server(monkeypatch, MAX_CONNECTIONS=3) as port, asyncio.timeout(20):
        with ExitStack() as stack:
            held = [stack.enter_context(slow_reader(port)) for _ in range(3)]
            for connection in held:
                await asyncio.get_running_loop().sock_sendall(connection, ask * 200)
            await until(lambda: len(stalled) == 3)
            _, last = await opened(port, ask=True)
            last.close()


def slow_reader(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    return connection


LISTENING = {
    "long poll": b"POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b'Content-Length: 32\r\n\r\n{"worker_id": "w:1", "wait": 20}',
    "tail": b"GET /events/tail HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


def listening(protocols: list[type[HttpConnection]], count: int) -> bool:
    """Whether so many connections only wait for events."""
    return sum(map(len, protocols[0].listening._by_peer.values())) == count


@pytest.fixture
def protocols(monkeypatch: pytest.MonkeyPatch) -> list[type[HttpConnection]]:
    """The protocols of the servers of this test."""
    made: list[type[HttpConnection]] = []

    def noted(header_timeout: float) -> type[HttpConnection]:
        made.append(connections.protocol(header_timeout))
        return made[-1]

    monkeypatch.setattr("durabus.http.serving.protocol", noted)
    return made


@pytest.mark.parametrize("request_", LISTENING.values(), ids=LISTENING)
async def test_a_peer_with_many_long_polls_or_tails_gives_one_up_for_a_peer_with_fewer(
    monkeypatch: pytest.MonkeyPatch, protocols: list[type[HttpConnection]], request_: bytes
) -> None:
    async with small_server(monkeypatch, MAX_CONNECTIONS=5) as port, asyncio.timeout(20):
        held = [await opened(port, ask=False) for _ in range(5)]
        for _, writer in held:
            writer.write(request_)
        await until(lambda: listening(protocols, 5))
        for _ in range(2):
            other = await opened(port, ask=True, source="127.0.0.2")
            other[1].write(request_)
            await until(lambda: listening(protocols, 5))
            held.append(other)
        reader, writer = await opened(port, ask=False, source="127.0.0.2")
        writer.write(LIVEZ)
        assert (await reader.read()).startswith(b"HTTP/1.1 503"), (
            "three and two: they do not push each other out in turn"
        )
        for number, (reader, kept) in enumerate(held):
            if number < 2:
                with suppress(ConnectionError):
                    await reader.read()
            else:
                assert not reader.at_eof(), "the ones that listen longest went"
            kept.close()
        writer.close()


async def test_a_server_that_works_for_all_of_its_connections_refuses_the_next_one_only(
    monkeypatch: pytest.MonkeyPatch, protocols: list[type[HttpConnection]]
) -> None:
    async with small_server(monkeypatch, MAX_CONNECTIONS=2) as port, asyncio.timeout(20):
        held = [await opened(port, ask=True) for _ in range(2)]
        for _, writer in held:
            writer.write(LISTENING["long poll"])
        await until(lambda: listening(protocols, 2))
        for _ in range(3):
            reader, writer = await opened(port, ask=False)
            writer.write(LIVEZ)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1\r\n" in answer
            assert problem(answer)["code"] == "unavailable"
            writer.close()
        for reader, writer in held:
            assert not reader.at_eof()
            writer.close()
