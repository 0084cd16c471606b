"""Every error response is a problem document with a stable code: of the API, of the framework, of the parser."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from tests.api.support import Desk, Server, bearer
from tests.api.test_limits import raw

from durabus import EventStore, ManualClock
from durabus.http import TokenFile
from durabus.http.auth.access import Scope
from durabus.http.problems import STATUS, Code

JSON = b"Content-Type: application/json\r\n"


def request(line: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    return line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers + b"\r\n" + body


RAW: dict[str, tuple[Code, bytes]] = {
    "an unknown address": (Code.ADDRESS_NOT_FOUND, request(b"GET /nothing")),
    "an id that is no number": (Code.ADDRESS_NOT_FOUND, request(b"GET /events/abc")),
    "an address in bytes": (Code.ADDRESS_NOT_FOUND, request(b"GET /events/%ff%00")),
    "an unknown static file": (Code.ADDRESS_NOT_FOUND, request(b"GET /dashboard/nothing.css")),
    "no address": (Code.ADDRESS_NOT_FOUND, request(b"OPTIONS *")),
    "a tunnel": (Code.ADDRESS_NOT_FOUND, request(b"CONNECT 127.0.0.1:80")),
    "an id beyond 64 bits": (Code.INVALID_REQUEST, request(b"GET /events/" + b"9" * 40)),
    "an unknown event": (Code.EVENT_NOT_FOUND, request(b"GET /events/4711")),
    "a WebSocket": (
        Code.EVENT_NOT_FOUND,
        request(b"GET /events/4711", b"Connection: upgrade\r\nUpgrade: websocket\r\n"),
    ),
    "a known method that is not taken": (Code.METHOD_NOT_ALLOWED, request(b"PUT /events")),
    "an unknown method": (Code.METHOD_NOT_ALLOWED, request(b"BREW /events")),
    "a query that is no number": (Code.INVALID_REQUEST, request(b"GET /events?limit=x")),
    "a query that is no text": (Code.INVALID_REQUEST, request(b"GET /events?tags=%ff")),
    "no body": (Code.INVALID_REQUEST, request(b"POST /events", JSON)),
    "no JSON": (Code.INVALID_REQUEST, request(b"POST /events", JSON + b"Content-Length: 1\r\n", b"{")),
    "not sent as JSON": (Code.NOT_JSON, request(b"POST /events", b"Content-Length: 2\r\n", b"{}")),
    "a large body": (Code.BODY_TOO_LARGE, request(b"POST /events", JSON + b"Content-Length: 99999999\r\n")),
    "large headers": (Code.HEADERS_TOO_LARGE, request(b"GET /livez", b"X: " + b"a" * 20_000 + b"\r\n")),
    "a foreign Host": (Code.FOREIGN_SITE, b"GET /events HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
    "a proxy": (Code.LOCAL_ONLY, request(b"GET /events", b"Via: 1.1 x\r\n")),
    "no Host": (Code.INVALID_REQUEST, b"GET /events HTTP/1.1\r\n\r\n"),
    "a bad request line": (Code.INVALID_REQUEST, b"nonsense\r\n\r\n"),
    "TLS": (Code.INVALID_REQUEST, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "a bad header": (Code.INVALID_REQUEST, request(b"GET /livez", b"X y: 1\r\n")),
    "a bad length": (Code.INVALID_REQUEST, request(b"POST /events", JSON + b"Content-Length: x\r\n")),
    "a bad chunk": (
        Code.INVALID_REQUEST,
        request(b"POST /events", JSON + b"Transfer-Encoding: chunked\r\n", b"zz\r\n"),
    ),
    "two lengths": (
        Code.INVALID_REQUEST,
        request(b"POST /events", JSON + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"),
    ),
    "an unknown coding": (
        Code.UNSUPPORTED_ENCODING,
        request(b"POST /events", JSON + b"Transfer-Encoding: gzip\r\n", b"zz"),
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("memory://") as made:
        yield made


def check(problem: dict[str, Any], code: str, status: int) -> None:
    assert problem.keys() == {"type", "code", "title", "status", "detail", "error"}
    assert (problem["code"], problem["type"]) == (code, f"urn:durabus:error:{code}")
    assert problem["status"] == status == STATUS[Code(code)]
    assert problem["title"]
    assert problem["detail"] == problem["error"] != ""


@pytest.mark.parametrize("case", RAW)
def test_whatever_comes_over_a_socket_is_refused_with_a_problem(server: Server, case: str) -> None:
    code, sent = RAW[case]
    head, _, body = raw(server, sent).partition(b"\r\n\r\n")
    version, status, phrase = head.partition(b"\r\n")[0].split(b" ", 2)
    assert (version, bool(phrase)) == (b"HTTP/1.1", True)
    assert head.lower().count(b"content-type: application/problem+json\r\n") == 1
    check(msgspec.json.decode(body), code, int(status))


@pytest.mark.parametrize("address", ["/nothing", "/events/4711"])
def test_a_refused_head_says_which_document_a_get_would_bring(server: Server, address: str) -> None:
    reply = httpx2.head(server.url + address)
    assert reply.status_code in {404, 405}
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.content == b""


async def test_every_address_refuses_with_a_problem(guarded: Desk, tokens: TokenFile) -> None:
    """The requests: no token, a wrong one, one without the scope, another method, no JSON, unknown fields or event."""
    _, admin = tokens.create("admin", [Scope.ADMIN])
    _, nothing = tokens.create("publisher", [Scope.PUBLISH])
    seen = set[str]()
    for address, methods in guarded.app.openapi()["paths"].items():
        path = address.replace("{id}", "4711")
        for method in methods:
            body: dict[str, Any] = {"json": {"unheard of": 1}} if method == "post" else {}
            calls: list[tuple[str, dict[str, Any], str | None]] = [
                (method, body, None),
                (method, body, "durabus_1_x"),
                (method, body, nothing),
                ("delete", {}, admin),
                (method, {"content": b"text"}, admin),
                *([(method, body, admin)] if method == "post" else []),
            ]
            for verb, sent, token in calls:
                headers = {} if token is None else bearer(token)
                reply = await guarded.http.request(verb.upper(), path, headers=headers, **sent)
                if reply.status_code >= 400:
                    assert reply.headers["content-type"] == "application/problem+json", (verb, path)
                    check(reply.json(), reply.json()["code"], reply.status_code)
                    seen.add(reply.json()["code"])
    assert seen >= {
        *("token_missing", "token_invalid", "scope_missing", "method_not_allowed"),
        *("not_json", "invalid_request"),
    }


async def test_an_unexpected_error_is_a_problem_without_details(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("s3cret")

    for owner, name in ((desk.store, "get_event"), (desk.app.api, "begin")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            reply = await desk.get("/events/1")
        assert reply.headers["content-type"] == "application/problem+json"
        check(reply.json(), "internal_error", 500)
        assert "s3cret" not in reply.text


async def test_a_body_that_takes_too_long_is_refused_with_a_problem(store: EventStore, clock: ManualClock) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with Desk(store, clock, body_timeout=0.01) as desk:
        reply = await desk.http.post("/events", content=slow())
        check(reply.json(), "body_timeout", reply.status_code)
