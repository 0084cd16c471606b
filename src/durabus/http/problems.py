"""Errors of the API: their codes, their documents, and how an exception becomes one.

Programs decide by the code. The texts may change.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException, ValidationException

from durabus.errors import (
    ConfigurationError,
    DamagedLogError,
    DurabusError,
    EventEnded,
    EventNotFound,
    InvalidEventError,
    InvalidPayloadError,
    LeaseLost,
    NotADeadLetter,
    ScheduleChanged,
    ScheduleNotFound,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedByStore,
)
from durabus.http.asgi import AnyRequest, Send

TYPE = "urn:durabus:error:{code}"
"""The ``type`` of a problem document: a name, not an address."""


class Code(StrEnum):
    """The kind of an error."""

    INVALID_REQUEST = "invalid_request"
    INVALID_PAYLOAD = "invalid_payload"
    UNKNOWN_PARENT = "unknown_parent"
    TOKEN_MISSING = "token_missing"  # noqa: S105  (a code)
    TOKEN_INVALID = "token_invalid"  # noqa: S105  (a code)
    LOCAL_ONLY = "local_only"
    NOT_ALLOWED = "not_allowed"
    SCOPE_MISSING = "scope_missing"
    FOREIGN_SITE = "foreign_site"
    EVENT_NOT_FOUND = "event_not_found"
    SCHEDULE_NOT_FOUND = "schedule_not_found"
    ADDRESS_NOT_FOUND = "address_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    LEASE_LOST = "lease_lost"
    NOT_A_DEAD_LETTER = "not_a_dead_letter"
    EVENT_ENDED = "event_ended"
    KEY_TAKEN = "key_taken"
    SCHEDULE_CHANGED = "schedule_changed"
    CLAIM_TOKEN_TAKEN = "claim_token_taken"  # noqa: S105  (a code)
    BODY_TOO_LARGE = "body_too_large"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    NOT_JSON = "not_json"
    TOO_MANY_WRONG_TOKENS = "too_many_wrong_tokens"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL_ERROR = "internal_error"
    UNSUPPORTED_BY_STORE = "unsupported_by_store"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    UNAVAILABLE = "unavailable"


STATUS: dict[Code, int] = {
    Code.INVALID_REQUEST: 400,
    Code.INVALID_PAYLOAD: 400,
    Code.UNKNOWN_PARENT: 400,
    Code.TOKEN_INVALID: 401,
    Code.TOKEN_MISSING: 401,
    Code.LOCAL_ONLY: 401,
    Code.NOT_ALLOWED: 403,
    Code.SCOPE_MISSING: 403,
    Code.FOREIGN_SITE: 403,
    Code.ADDRESS_NOT_FOUND: 404,
    Code.EVENT_NOT_FOUND: 404,
    Code.SCHEDULE_NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.BODY_TIMEOUT: 408,
    Code.LEASE_LOST: 409,
    Code.NOT_A_DEAD_LETTER: 409,
    Code.EVENT_ENDED: 409,
    Code.KEY_TAKEN: 409,
    Code.SCHEDULE_CHANGED: 409,
    Code.CLAIM_TOKEN_TAKEN: 409,
    Code.BODY_TOO_LARGE: 413,
    Code.PAYLOAD_TOO_LARGE: 413,
    Code.NOT_JSON: 415,
    Code.TOO_MANY_WRONG_TOKENS: 429,
    Code.HEADERS_TOO_LARGE: 431,
    Code.INTERNAL_ERROR: 500,
    Code.UNSUPPORTED_BY_STORE: 501,
    Code.UNSUPPORTED_ENCODING: 501,
    Code.UNAVAILABLE: 503,
}

_FIRST: dict[int, Code] = {status: code for code, status in reversed(STATUS.items())}
_CLIENT_ERRORS = range(400, 500)


def code_of(status: int) -> Code:
    """The code of an error that has no more specific one: the first code of its status."""
    usual = Code.INVALID_REQUEST if status in _CLIENT_ERRORS else Code.INTERNAL_ERROR
    return _FIRST.get(status, usual)


T = TypeVar("T", bound=msgspec.Struct)


async def decoded(request: AnyRequest, wanted: type[T]) -> T:
    """The body decoded as ``wanted``. The middleware has checked that it is UTF-8 and not nested too deeply."""
    body = await request.body()
    if not body:
        raise Problem(400, "the request has no body: send a JSON object")
    try:
        document: T = _decoder(wanted).decode(body)
    except msgspec.DecodeError as error:
        raise Problem(400, str(error)) from error
    return document


@cache
def _decoder(wanted: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted)


MEDIA_TYPE = "application/problem+json"
NOT_NOW = {"Retry-After": "1"}
UNAUTHORISED = {"WWW-Authenticate": 'Bearer realm="durabus"'}

STORE_AWAY = "the store cannot be used now: try again. A change that this request asked for may have happened or not"

logger = logging.getLogger("durabus.server")


class ProblemDocument(msgspec.Struct, kw_only=True):
    """The error, and what to do about it."""

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
        """The problem document."""
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
        """The problem document as JSON."""
        return msgspec.json.encode(self.document())


_CODES: dict[type[DurabusError], Code] = {
    EventNotFound: Code.EVENT_NOT_FOUND,
    ScheduleNotFound: Code.SCHEDULE_NOT_FOUND,
    ScheduleChanged: Code.SCHEDULE_CHANGED,
    NotADeadLetter: Code.NOT_A_DEAD_LETTER,
    EventEnded: Code.EVENT_ENDED,
    LeaseLost: Code.LEASE_LOST,
    InvalidPayloadError: Code.INVALID_PAYLOAD,
    InvalidEventError: Code.INVALID_REQUEST,
    ConfigurationError: Code.INVALID_REQUEST,
    UnsupportedByStore: Code.UNSUPPORTED_BY_STORE,
}


def problem_response(_request: AnyRequest, error: Exception) -> Response[bytes]:
    """The response for an exception of a handler, the router or the parser."""
    problem = problem_of(error)
    return Response(problem.body(), status_code=problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """The problem to send for ``error``. Details that a client must not know go to the log."""
    match error:
        case Problem():
            return error
        case ValidationException():
            return Problem(400, _validation_text(error))
        case HTTPException():
            return Problem(error.status_code, _http_text(error), dict(error.headers or {}))
        case StoreUnavailableError() | StoreClosedError() | DamagedLogError():
            # The client does not get the error's text: it may name files, hosts or users.
            logger.error("the store could not serve a request: %s", error)
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
            return "no such address: /openapi.json lists all addresses"
        case 405:
            return f"this address does not accept this method: use {(error.headers or {}).get('allow', 'another one')}"
        case _:
            return error.detail


def encoded_headers(problem: Problem) -> list[tuple[bytes, bytes]]:
    """The headers of a problem document that is sent without the framework."""
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(problem.body())), **problem.headers}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def send_problem(problem: Problem, send: Send) -> None:
    """Send a problem document without the framework."""
    await send({"type": "http.response.start", "status": problem.status, "headers": encoded_headers(problem)})
    await send({"type": "http.response.body", "body": problem.body(), "more_body": False})
