"""When a request is sent again: only if that is safe, and only if the trouble may pass."""

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
PASSING = frozenset({429, 502, 503, 504})
TIMEOUT = 30.0


def pauses() -> Iterator[float]:
    """Seconds between attempts: growing, and never the same for two clients."""
    for attempt in range(ATTEMPTS - 1):
        yield min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def passes(status: int) -> bool:
    """Whether an answer means: not now."""
    return status in PASSING


def is_away(error: DurabusError) -> bool:
    """Whether all attempts met a server that cannot be used now, and not one that says no."""
    return isinstance(error, StoreUnavailableError) or (isinstance(error, ApiError) and passes(error.status))


def unreachable(url: str, error: Exception) -> StoreUnavailableError:
    """No attempt got an answer."""
    reason = str(error) or type(error).__name__
    return StoreUnavailableError(f"the API at {url} does not answer ({reason}): is `durabus serve` running there?")


def request_options(call: ApiCall[Any], timeout: float) -> dict[str, Any]:
    """What both kinds of HTTP client are given."""
    headers = {"Content-Type": "application/json"} if call.body is not None else {}
    return {"content": call.body, "headers": headers, "timeout": timeout + call.patience}


def client_options(url: str, token: str | None, transport: Any) -> dict[str, Any]:
    """How an HTTP client is made. The token travels in a header, never in an address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"url={url!r}: must begin with http:// or https://")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    made: dict[str, Any] = {"base_url": url, "headers": headers, "limits": httpx2.Limits(max_connections=100)}
    return made if transport is None else {**made, "transport": transport}
