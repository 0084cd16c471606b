"""What one handler did with one event."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import force_setattr

from durabus.model.limits import Duration, seconds, stored_text
from durabus.model.payload import decode_payload
from durabus.model.statuses import ResultStatus


class Success:
    """A handler returns this to have its value stored: ``return Success(value)``."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class TransientError(Exception):
    """A handler raises or returns this to be retried, after ``retry_after`` or as the retry policy says."""

    def __init__(self, message: str = "transient error", *, retry_after: Duration | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else seconds(retry_after, "retry_after")


class UnrecoverableError(Exception):
    """A handler raises or returns this if a retry cannot help. The event ends now."""

    def __init__(self, message: str = "unrecoverable error") -> None:
        super().__init__(message)


class MaxDepthError(UnrecoverableError):
    """A handler published a child too deep below the first event of its chain. The child was not published.

    The error names the newest events of the chain. A retry would fail in the same way.
    """


class Suspended(BaseException):
    """The handler goes on after ``delay`` seconds. Its event goes back to the queue and keeps its attempt.

    ``kept`` are results to store in the same step. It is no ``Exception``: a handler that catches those must not take a
    sleep for a failure.
    """

    def __init__(self, delay: float, kept: tuple[HandlerResult, ...] = ()) -> None:
        super().__init__(f"goes on in {delay:g} s")
        self.delay = delay
        self.kept = kept


class Snooze(Suspended):
    """A handler raises or returns this to be called again after ``delay``, without losing an attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(seconds(delay, "delay", allow_zero=False))


class HandlerResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of one handler on one event."""

    handler_id: str
    status: ResultStatus
    attempts: int = 0
    error: str | None = None
    value_json: str | None = None
    """The value that the handler returned, as JSON. If the handler raised, ``{"traceback": …}``."""
    execution_time_ms: float | None = None
    fence: int = 0
    worker_id: str | None = None
    expires_ts: float | None = None

    def __post_init__(self) -> None:
        """Change the error into a text that every store can hold."""
        if self.error is not None:
            force_setattr(self, "error", stored_text(self.error))

    @property
    def value(self) -> Any:
        """The value that the handler returned, if it was stored."""
        return None if self.value_json is None else decode_payload(self.value_json)
