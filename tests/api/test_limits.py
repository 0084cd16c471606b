"""What the server refuses before it parses it, and that it goes on afterwards."""

import socket
import sys
from collections.abc import Iterator
from time import monotonic

import httpx2
import pytest
from tests.api.support import Desk, Server

from durabus.http.middleware import MAX_JSON_DEPTH, depth_of

JSON = {"Content-Type": "application/json"}
MIB = 1_048_576


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    with Server("", command=[sys.executable, "-m", "tests.api.impatient_server"]) as server:
        yield server
        assert httpx2.get(f"{server.url}/readyz").status_code == 200, "it did not survive the tests"


def raw(server: Server, *parts: bytes, timeout: float = 30.0) -> bytes:
    """Send bytes as they are. Returns everything until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has closed the connection
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return received


HEAD = b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def test_headers_that_never_end_are_given_up(impatient: Server) -> None:
    begun = monotonic()
    assert raw(impatient, b"GET /events HTTP/1.1\r\nHost: 127.") == b""
    assert 0.4 < monotonic() - begun < 20


def test_headers_that_trickle_are_given_up(impatient: Server) -> None:
    """A client gains no time by sending a byte now and then."""
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=30) as connection:
        begun = monotonic()
        connection.sendall(b"GET /events HTTP/1.1\r\nX-Slow: ")
        connection.settimeout(0.1)
        while monotonic() - begun < 30:
            try:
                connection.sendall(b"a")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        assert monotonic() - begun < 20


def test_the_second_request_of_a_connection_is_timed_too(impatient: Server) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=30) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b""
        while not answer.endswith(b'{"status":"alive"}'):
            answer += connection.recv(65_536)
        begun = monotonic()
        connection.sendall(b"GET /livez HT")
        assert read_all(connection) == b""
        assert 0.3 < monotonic() - begun < 20


def test_a_body_that_does_not_come_is_given_up(impatient: Server) -> None:
    begun = monotonic()
    answer = raw(impatient, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert 0.4 < monotonic() - begun < 20


def test_the_body_of_a_request_that_was_refused_is_given_up_too(impatient: Server) -> None:
    """The reply comes before the body. The client must not gain time by each further byte."""
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=30) as connection:
        connection.sendall(HEAD + b"Via: 1.1 x\r\nContent-Length: 100\r\n\r\n{")
        assert connection.recv(12) == b"HTTP/1.1 401"
        connection.sendall(b" ")
        begun = monotonic()
        read_all(connection)
        assert monotonic() - begun < 20


def test_a_slow_connection_does_not_hold_up_others(impatient: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", impatient.port), timeout=30) for _ in range(200)]
    try:
        for connection in held:
            connection.sendall(HEAD)
        assert httpx2.get(f"{impatient.url}/livez").status_code == 200
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize("length", [1_114_113, 2_000_000_000])
def test_a_large_body_is_refused_by_its_announcement(length: int, impatient: Server) -> None:
    answer = raw(impatient, HEAD + b"Content-Length: %d\r\n\r\n" % length)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


def test_a_large_body_without_announcement_is_refused_while_it_streams(impatient: Server) -> None:
    chunk = b"%x\r\n%b\r\n" % (MIB, b"x" * MIB)
    begun = monotonic()
    answer = raw(impatient, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 200)
    assert answer.startswith(b"HTTP/1.1 413")
    assert monotonic() - begun < 20


def test_headers_have_a_limit(impatient: Server) -> None:
    answer = raw(impatient, b"GET /livez HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")


BODIES = {
    "no json": b"title=a",
    "cut off": b'{"title": "a"',
    "an array": b"[]",
    "a number": b"7",
    "two documents": b'{"title": "a"} {"title": "b"}',
    "latin-1": '{"title": "é"}'.encode("latin-1"),
    "a lone byte in the payload": b'{"title": "a", "payload": "\xff"}',
    "an overlong nul": b'{"title": "a", "payload": "\xc0\x80"}',
    "a surrogate in bytes": b'{"title": "a", "payload": "\xed\xa0\x80"}',
    "a lone surrogate": b'{"title": "a", "payload": "\\ud800"}',
    "nan": b'{"title": "a", "payload": NaN}',
    "infinity": b'{"title": "a", "payload": 1e999}',
    "a huge number": b'{"title": "a", "payload": ' + b"9" * 100_000 + b"}",
    "more than 64 bits": b'{"title": "a", "payload": 18446744073709551616}',
    "a deep array": b'{"title": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a deep object": b'{"title": "a", "payload": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    "a little too deep": b'{"title": "a", "payload": ' + b"[" * 65 + b"]" * 65 + b"}",
    "open brackets only": b"[" * 1_000_000,
    "quotes without end": b'{"title": "' + b'\\"' * 500_000,
    "an unknown field": b'{"title": "a", "titel": "b"}',
    "a wrong type": b'{"title": 7}',
    "no title": b"{}",
    "an empty title": b'{"title": ""}',
    "a long title": b'{"title": "' + b"a" * 256 + b'"}',
    "too many tags": b'{"title": "a", "tags": "' + b",".join(b"t%d" % n for n in range(33)) + b'"}',
    "a long tag": b'{"title": "a", "tags": "' + b"t" * 65 + b'"}',
    "an empty tag": b'{"title": "a", "tags": "a,,b"}',
    "a tag with a space": b'{"title": "a", "tags": "a b"}',
    "a tag with a nul": b'{"title": "a", "tags": "a\\u0000"}',
    "a negative delay": b'{"title": "a", "delay": -1}',
    "an endless delay": b'{"title": "a", "delay": 1e300}',
    "nothing": b"",
}


async def test_bodies_that_are_refused(desk: Desk) -> None:
    for name, body in BODIES.items():
        begun = monotonic()
        answer = await desk.http.post("/events", content=body, headers=JSON)
        assert answer.status_code == 400, (name, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == 400
        assert problem["error"] == problem["detail"] != ""
        assert monotonic() - begun < 20, name
    assert (await desk.store.counts()).pending == 0


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "jsonx"]
)
async def test_a_body_must_say_that_it_is_json(desk: Desk, kind: str) -> None:
    """Otherwise a form of another web site could send one."""
    headers = {"Content-Type": kind} if kind else {}
    assert (await desk.http.post("/events", content=b'{"title": "a"}', headers=headers)).status_code == 415


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/cloudevents+json"]
)
async def test_kinds_of_json(desk: Desk, kind: str) -> None:
    answer = await desk.http.post("/events", content=b'{"title": "a"}', headers={"Content-Type": kind})
    assert answer.status_code == 201


async def test_what_is_just_allowed(desk: Desk) -> None:
    deepest = b"[" * 64 + b"]" * 64
    bodies = [
        b'{"title": "a", "payload": ' + deepest + b"}",
        b'{"title": "\\u0000\\n*", "payload": "\\u0000"}',
        b'{"title": "' + "é".encode() * 255 + b'"}',
        b'{"title": "a", "tags": "' + b",".join(b"%064d" % n for n in range(32)) + b'"}',
        b'{"title": "a", "payload": [9223372036854775807, -9223372036854775808, 1e308, "[[[[{{{{"]}',
    ]
    for body in bodies:
        answer = await desk.http.post("/events", content=body, headers=JSON)
        assert answer.status_code == 201, answer.text
        assert (await desk.get(f"/events/{answer.json()['id']}")).json()["payload"] == answer.json()["payload"]


@pytest.mark.parametrize(
    "path",
    [
        "/events/0",
        "/events/-1",
        "/events/9223372036854775808",
        "/events/" + "9" * 5_000,
        "/events/one",
        "/events?limit=0",
        "/events?limit=1001",
        "/events?limit=x",
        "/events?offset=-1",
        "/events?offset=100000000000000000000",
        "/events?tags=,",
        "/events?tags=a%00",
        "/events?bus=%00",
        "/events?status=pending",
        "/events/subscribe?tags=a&worker_id=" + "w" * 256,
        "/events/subscribe?tags=a&worker_id=a%20b",
        "/events/tail?after=nonsense",
    ],
)
async def test_addresses_that_are_refused(desk: Desk, path: str) -> None:
    assert (await desk.get(path)).status_code in {400, 404}


def test_the_depth_is_found_without_parsing() -> None:
    assert depth_of(b"") == 0
    assert depth_of(b'{"a": [1, {"b": 2}]}') == 3
    assert depth_of(b'{"a": "[[[[", "b\\"[[": "\\\\"}') == 1
    assert depth_of(b'["unfinished [[[[[') == 1
    assert depth_of(b'["unfinished [[[[[\\') == 1
    assert depth_of(b"[" * (MAX_JSON_DEPTH + 1)) == MAX_JSON_DEPTH + 1
