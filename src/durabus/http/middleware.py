"""The middleware: checks that every request must pass before it is routed or parsed.

It checks the sender, the sender's address, the time the body takes, its size and how deeply it is nested.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from itertools import accumulate

from durabus.clock import perf_counter
from durabus.http.api import Api
from durabus.http.asgi import App, AsgiScope, Message, Receive, Send
from durabus.http.auth.access import LOCAL_SENDER, Principal
from durabus.http.auth.peers import check_local
from durabus.http.auth.tokens import TokenFile
from durabus.http.dashboard import browser
from durabus.http.metrics import UNKNOWN_ROUTE
from durabus.http.problems import UNAUTHORISED, Code, Problem, problem_of, send_problem
from durabus.http.settings import MAX_BATCH_BODY, MAX_BODY
from durabus.model.limits import MAX_DEPTH
from durabus.views.live import LiveViews

EXEMPT = frozenset({"/livez", "/readyz"})
"""These exact paths need no token: they reveal nothing but yes or no."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LARGE = frozenset({"/events/batch", "/claims/settle"})
MAX_JSON_DEPTH = MAX_DEPTH + 4
"""A payload nested as deeply as allowed, plus the levels around it in a batch."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
JSON_TYPES = re.compile(rb"\s*application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
POLICY_VIOLATION = 1008
MAX_LENGTH_DIGITS = 15
MAX_HEADER_BYTES = 16_384
HEADER_LINE_BYTES = 4
"""A colon, a space and the end of the line."""


class RequestMiddleware:
    """The outermost ASGI app."""

    def __init__(self, app: App, api: Api, live: LiveViews, tokens: TokenFile | None) -> None:
        self._app = app
        self._api = api
        self._live = live
        self._tokens = tokens

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass a request on to the routes, or respond to it here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        mounted_at = scope.get("root_path", "").rstrip("/")
        inner: AsgiScope = {
            **scope,
            "path": relative_path(scope),
            "root_path": "",
            "mounted_at": mounted_at,
            "api": self._api,
            "live_views": self._live,
            "check_again": self._principal,
        }
        headers = dict(scope["headers"])
        begun, status = perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in ALWAYS if one[0] not in given)]
            await send(message)

        try:
            check_headers(scope)
            inner["user"] = self._principal(inner, headers)
            await self._api.begin()
            body = await self._body(inner, headers, receive)
            await self._app(inner, replayed(body, receive), counted)
        except Exception as error:
            if status:
                raise  # the response has begun, so only the end of the connection can signal the error
            await send_problem(problem_of(error), counted)
        finally:
            route = inner.get("path_template", UNKNOWN_ROUTE)
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            self._api.metrics.count(method, route, status, perf_counter() - begun)

    def _principal(self, scope: AsgiScope, headers: dict[bytes, bytes]) -> Principal:
        if scope["path"] in EXEMPT:
            return Principal(name="anonymous", scopes=frozenset())
        page = browser.is_page(scope["path"])
        if page and scope["method"] not in SAFE_METHODS:
            browser.check_same_origin(headers)
        if self._tokens is None:
            check_local(scope, headers, navigates=page and browser.navigates(scope["method"], headers))
            return LOCAL_SENDER
        if scope["path"] in browser.OPEN:
            return Principal(name="anonymous", scopes=frozenset())
        text = bearer_token(headers) or (browser.cookie_token(headers) if page else "")
        try:
            return self._holder(text, (scope.get("client") or ("",))[0])
        except Problem as problem:
            if problem.status == HTTPStatus.UNAUTHORIZED and page and browser.wants_html(scope["method"], headers):
                raise browser.to_login(scope) from None
            raise

    def _holder(self, text: str, host: str) -> Principal:
        if not text:
            raise Problem(401, "send a token: Authorization: Bearer durabus_…", UNAUTHORISED, code=Code.TOKEN_MISSING)
        holder = self._api.holder(text, host)
        if holder is None:
            raise Problem(401, "this token is unknown, expired or revoked", UNAUTHORISED)
        return holder

    async def _body(self, scope: AsgiScope, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        page = browser.is_page(scope["path"])
        limit = browser.MAX_FORM if page else MAX_BATCH_BODY if scope["path"] in LARGE else MAX_BODY
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > MAX_LENGTH_DIGITS or int(length) > limit):
            raise too_large(limit)
        seconds = self._api.settings.body_timeout
        try:
            async with asyncio.timeout(seconds):
                body = await read_body(receive, limit)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {seconds:g} s", {"Connection": "close"}) from None
        if body:
            check = browser.check_form if page else check_json
            check(body, headers.get(b"content-type", b""))
        return body


def bearer_token(headers: dict[bytes, bytes]) -> str:
    """The token in the Authorization header; empty if there is none."""
    kind, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def relative_path(scope: AsgiScope) -> str:
    """The path below the prefix under which a user's app has mounted this one."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below or "/" if below.startswith("/") or not below else path


def check_headers(scope: AsgiScope) -> None:
    """Refuse headers that are too large, and headers that two servers could read as two different requests."""
    size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    size += sum(len(name) + len(value) + HEADER_LINE_BYTES for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise Problem(
            431, f"address and headers have {size:,} bytes: the limit is {MAX_HEADER_BYTES:,}", {"Connection": "close"}
        )
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise Problem(
            400, "a request has Content-Length or Transfer-Encoding, never both: send one", {"Connection": "close"}
        )


async def read_body(receive: Receive, limit: int) -> bytes:
    """Read the body. Reading stops as soon as the body is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "the client disconnected before its body had arrived")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(limit: int) -> Problem:
    """The error for a body above ``limit``. The server does not read the rest, so it closes the connection."""
    return Problem(
        413, f"the body is larger than {limit:,} bytes: store the large part elsewhere", {"Connection": "close"}
    )


def check_json(body: bytes, content_type: bytes) -> None:
    """Refuse a body that is not JSON in UTF-8 or is nested too deeply, before a parser reads it."""
    if not JSON_TYPES.fullmatch(content_type):
        raise Problem(415, "the body must be JSON: send Content-Type: application/json")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8: byte {error.start} is invalid") from None
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH and depth_of(body) > MAX_JSON_DEPTH:
        raise Problem(400, f"the body is nested deeper than {MAX_DEPTH} levels")


def depth_of(body: bytes) -> int:
    """How deeply brackets are nested. The body need not be valid JSON."""
    if b"\\" in body:  # only a quote that is not escaped begins or ends a string
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(body.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that returns the body once, and then what the client still sends: its disconnect."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
