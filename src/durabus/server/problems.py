"""Errors as RFC 9457 problem documents. ``error``, the design document's own field, says the same as ``detail``."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from durabus.errors import (
    ConfigurationError,
    DamagedLogError,
    DurabusError,
    EventNotFound,
    InvalidEventError,
    InvalidPayloadError,
    LeaseLost,
    NotADeadLetter,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedByStore,
)
from durabus.server.asgi import Send
from durabus.server.codes import STATUS, TYPE, Code, code_of

MEDIA_TYPE = "application/problem+json"
NOT_NOW = {"Retry-After": "1"}
UNAUTHORISED = {"WWW-Authenticate": 'Bearer realm="durabus"'}

STORE_AWAY = "the store cannot be used now: try again. If this was to change something, that may have happened or not"

logger = logging.getLogger("durabus.server")


class ProblemDocument(msgspec.Struct, kw_only=True):
    """What went wrong, and what to do about it."""

    type: str
    code: Code
    title: str
    status: int
    detail: str
    error: str


class Problem(Exception):  # noqa: N818  (it is one)
    """Ends a request with an error document."""

    def __init__(
        self, status: int, detail: str, headers: dict[str, str] | None = None, *, code: Code | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code or code_of(status)
        self.detail = detail
        self.headers = {**(NOT_NOW if status == HTTPStatus.SERVICE_UNAVAILABLE else {}), **(headers or {})}

    def document(self) -> ProblemDocument:
        """The body."""
        title = HTTPStatus(self.status).phrase
        return ProblemDocument(
            type=TYPE.format(code=self.code),
            code=self.code,
            title=title,
            status=self.status,
            detail=self.detail,
            error=self.detail,
        )

    def body(self) -> bytes:
        """The body as it is sent."""
        return msgspec.json.encode(self.document())


_CODES: dict[type[DurabusError], Code] = {
    EventNotFound: Code.EVENT_NOT_FOUND,
    NotADeadLetter: Code.NOT_A_DEAD_LETTER,
    LeaseLost: Code.LEASE_LOST,
    InvalidPayloadError: Code.INVALID_PAYLOAD,
    InvalidEventError: Code.INVALID_REQUEST,
    ConfigurationError: Code.INVALID_REQUEST,
    UnsupportedByStore: Code.UNSUPPORTED_BY_STORE,
}


def answer(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response to any exception of a handler, of the router or of the parser."""
    problem = problem_of(error)
    return Response(problem.body(), status_code=problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """What to tell a client of ``error``; what it must not know goes to the log."""
    match error:
        case Problem():
            return error
        case ValidationException():
            return Problem(400, _validation_text(error))
        case HTTPException():
            return Problem(error.status_code, _http_text(error), dict(error.headers or {}))
        case StoreUnavailableError() | StoreClosedError() | DamagedLogError():
            # Not its own words: they may name files, hosts or users.
            logger.error("the store refused a request: %s", error)
            return Problem(503, STORE_AWAY)
        case DurabusError() if type(error) in _CODES:
            code = _CODES[type(error)]
            return Problem(STATUS[code], str(error), code=code)
        case _:
            number = uuid4().hex[:12]
            logger.error("request failed [%s]", number, exc_info=error)
            return Problem(500, f"the server failed; its log has the details under {number}")


def _validation_text(error: ValidationException) -> str:
    found = error.extra if isinstance(error.extra, list) else []
    return "; ".join(f"{one.get('key', 'request')}: {one.get('message', '')}" for one in found) or error.detail


def _http_text(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "no such address: see /openapi.json for those there are"
        case 405:
            return f"this address does not take this method, only {(error.headers or {}).get('allow', 'others')}"
        case _:
            return error.detail


def encoded_headers(problem: Problem) -> list[tuple[bytes, bytes]]:
    """The headers of a problem document, where no framework makes them."""
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(problem.body())), **problem.headers}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def send_problem(problem: Problem, send: Send) -> None:
    """A problem document without the help of the framework."""
    await send({"type": "http.response.start", "status": problem.status, "headers": encoded_headers(problem)})
    await send({"type": "http.response.body", "body": problem.body(), "more_body": False})
