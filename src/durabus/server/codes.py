"""The names of errors: programs decide by them, texts may change."""

from __future__ import annotations

from enum import StrEnum

TYPE = "urn:durabus:error:{code}"
"""The ``type`` of a problem document: a name, not an address."""


class Code(StrEnum):
    """What went wrong."""

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
    ADDRESS_NOT_FOUND = "address_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    LEASE_LOST = "lease_lost"
    NOT_A_DEAD_LETTER = "not_a_dead_letter"
    KEY_TAKEN = "key_taken"
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
    Code.METHOD_NOT_ALLOWED: 405,
    Code.BODY_TIMEOUT: 408,
    Code.LEASE_LOST: 409,
    Code.NOT_A_DEAD_LETTER: 409,
    Code.KEY_TAKEN: 409,
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
    """The code of an error that has no more special one: the first of its status."""
    usual = Code.INVALID_REQUEST if status in _CLIENT_ERRORS else Code.INTERNAL_ERROR
    return _FIRST.get(status, usual)
