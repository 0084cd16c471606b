"""When a client sends a request again: only if that is safe and the error may be temporary."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx2

from durabus.client.calls import ApiCall
from durabus.errors import ApiError, ConfigurationError, DurabusError, StoreUnavailableError

ATTEMPTS = 6
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
TEMPORARY = frozenset({429, 502, 503, 504})
TIMEOUT = 30.0


def pauses() -> Iterator[float]:
    """Seconds between attempts. They grow and are random, so that clients do not repeat at the same time."""
    for attempt in range(ATTEMPTS - 1):
        yield min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def is_temporary(status: int) -> bool:
    """Whether a status means that the server may accept the request later."""
    return status in TEMPORARY


def is_away(error: DurabusError) -> bool:
    """Whether an error means that the server cannot be used now, rather than that it refused the request."""
    return isinstance(error, StoreUnavailableError) or (isinstance(error, ApiError) and is_temporary(error.status))


def unreachable(url: str, error: Exception) -> StoreUnavailableError:
    """The error when no attempt got a response."""
    reason = str(error) or type(error).__name__
    return StoreUnavailableError(f"the API at {url} does not respond ({reason}): is `durabus serve` running there?")


def request_options(call: ApiCall[Any], timeout: float) -> dict[str, Any]:
    """The options of a request, for both HTTP clients."""
    headers = {"Content-Type": "application/json"} if call.body is not None else {}
    return {"content": call.body, "headers": headers, "timeout": timeout + call.patience}


def client_options(url: str, token: str | None, transport: Any) -> dict[str, Any]:
    """The options of an HTTP client. The token is sent in a header, never in an address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"url={url!r}: must begin with http:// or https://")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    made: dict[str, Any] = {"base_url": url, "headers": headers, "limits": httpx2.Limits(max_connections=100)}
    return made if transport is None else {**made, "transport": transport}
