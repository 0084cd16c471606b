"""The stand-alone server and what comes over its sockets: large headers, ambiguous requests, silent connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import httpx2
import msgspec
import pytest
from tests.api.support import Server
from tests.api.test_limits import raw

from durabus import open_store
from durabus.server import Settings, connections, create_app
from durabus.server.gate import MAX_HEADER_BYTES
from durabus.server.serving import listen, serve

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


def test_a_thousand_silent_connections_stop_nobody(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 30) as busy, httpx2.Client() as client:
        poll = b'{"worker_id": "w:1", "wait": 20}'
        head = b"POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        busy.sendall(head + b"Content-Length: %d\r\n\r\n" % len(poll) + poll)
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
async def small_server(monkeypatch: pytest.MonkeyPatch, **limits: float) -> AsyncIterator[int]:
    for name, value in limits.items():
        monkeypatch.setattr(connections, name, value)
    app = create_app(await open_store("memory://"), settings=Settings(header_timeout=60.0))
    ready = asyncio.Event()
    with listen("127.0.0.1", 0) as listening:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(serve(app, listening, stop_within=1, ready=ready.set))
            await ready.wait()
            yield listening.getsockname()[1]
            running.cancel()


async def opened(port: int, *, ask: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if ask:
        writer.write(LIVEZ)
        assert (await reader.readuntil(b'{"status":"alive"}')).startswith(b"HTTP/1.1 200")
    return reader, writer


async def test_a_connection_that_says_nothing_is_closed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before headers that have begun must be whole."""
    async with small_server(monkeypatch, SILENT_FOR=0.1) as port, asyncio.timeout(20):
        reader, writer = await opened(port, ask=False)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("ask", [False, True], ids=["silent", "idle after a request"])
async def test_a_full_server_closes_the_connection_that_is_idle_longest(
    monkeypatch: pytest.MonkeyPatch, ask: bool
) -> None:
    async with small_server(monkeypatch, MAX_CONNECTIONS=8) as port, asyncio.timeout(20):
        held = [await opened(port, ask=ask) for _ in range(7)]
        _, last = await opened(port, ask=True)
        assert await held[0][0].read() == b""
        for reader, writer in held[1:]:
            writer.write(LIVEZ)
            assert (await reader.readuntil(b'{"status":"alive"}')).startswith(b"HTTP/1.1 200")
        for writer in (last, *(writer for _, writer in held)):
            writer.close()
