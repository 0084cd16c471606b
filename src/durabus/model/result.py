"""What one handler did with one event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from durabus.errors import ConfigurationError
from durabus.model.event import Event
from durabus.model.limits import Duration, seconds, stored_text
from durabus.model.payload import decode_payload
from durabus.model.statuses import ResultStatus

OFFERED_AT_ONCE = 0.0
"""``expires_ts`` of a handler that was offered and that no worker has claimed since."""
OFFERABLE = frozenset({ResultStatus.PENDING, ResultStatus.PROCESSING})


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


class BatchFailed(Exception):  # noqa: N818  (reads as the sentence it is)
    """A batch handler raises this if it failed for some of its events; it succeeded for the others.

    ``errors`` has the error of each failed event, by the event or its ``event_id``. Each counts as if a handler of that
    event alone had raised it: a ``TransientError`` is retried after its delay, an ``UnrecoverableError`` not at all.
    """

    def __init__(
        self,
        # The key of a mapping is invariant: a user's dict[Event, Exception] is no mapping of Event | str.
        errors: Mapping[Event, BaseException] | Mapping[str, BaseException] | Mapping[Event | str, BaseException],
    ) -> None:
        takes = "it takes a mapping from events, or their event_id, to exceptions"
        if not isinstance(errors, Mapping):
            raise ConfigurationError(f"BatchFailed got {errors!r:.200}: {takes}")
        # The text names no event: its errors would be part of it, and grow with each attempt.
        wrong = [error for error in errors.values() if not isinstance(error, BaseException)]
        if wrong:
            raise ConfigurationError(f"BatchFailed got {wrong[0]!r:.200} for an event, which is no exception: {takes}")
        self.errors = {key.event_id if isinstance(key, Event) else key: error for key, error in errors.items()}
        super().__init__(f"the batch handler failed for {len(self.errors)} events")


class MaxDepthError(UnrecoverableError):
    """A handler published a child too deep below the first event of its chain. The child was not published.

    The error names the newest events of the chain. A retry would fail in the same way.
    """


class Suspended(BaseException):
    """The handler goes on after ``delay`` seconds, or at the time ``until`` by the clock of the store.

    Its event goes back to the queue and keeps its attempt. It is no ``Exception``: a handler that catches those must
    not take a sleep for a failure.
    """

    def __init__(self, delay: float, *, until: float | None = None) -> None:
        super().__init__(f"goes on in {delay:g} s" if until is None else f"goes on at {until:.3f} s since 1970")
        self.delay = delay
        self.until = until


class Snooze(Suspended):
    """A handler raises or returns this to be called again after ``delay``, without losing an attempt.

    ``delay`` may be an instant, a datetime with a time zone: then the handler is called again at that time by the clock
    of the store, or at once if it is past.
    """

    def __init__(self, delay: Duration | datetime) -> None:
        if not isinstance(delay, datetime):
            super().__init__(seconds(delay, "delay", allow_zero=False))
            return
        if delay.utcoffset() is None:
            raise ConfigurationError(
                f"Snooze({delay!r}): a datetime must have a time zone, because it names no instant without one; give "
                "one, such as tzinfo=datetime.UTC, or a number of seconds"
            )
        super().__init__(0.0, until=delay.timestamp())


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
    """When the lease of the claim on the handler ends. A PENDING handler that has it is offered to the workers of all
    nodes, from this time on."""

    def __post_init__(self) -> None:
        """Change the error into a text that every store can hold."""
        if self.error is not None:
            force_setattr(self, "error", stored_text(self.error))

    @property
    def is_offered(self) -> bool:
        """Whether workers of other nodes may claim the handler now, later, or once the claim on it has expired."""
        return self.expires_ts is not None and self.status in OFFERABLE

    @property
    def value(self) -> Any:
        """The value that the handler returned, if it was stored."""
        return None if self.value_json is None else decode_payload(self.value_json)


def first_success(handler_id: str, execution_time_ms: float | None) -> HandlerResult:
    """Return the result of a handler that succeeded at its first call and returned no value."""
    return HandlerResult(
        handler_id=handler_id, status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=execution_time_ms
    )


def with_first_success(
    results: tuple[HandlerResult, ...], handler_id: str | None, execution_time_ms: float | None
) -> tuple[HandlerResult, ...]:
    """Return results with the success of ``handler_id``, unless they have one of this handler, or it is None."""
    if handler_id is None or any(result.handler_id == handler_id for result in results):
        return results
    return (*results, first_success(handler_id, execution_time_ms))


def offer(handler_id: str, before: HandlerResult | None = None) -> HandlerResult:
    """Return the result that offers a handler at once to the workers of other nodes. ``before`` is what it did so far.

    An offer keeps the last error and the time of the last call: they show that the handler has run before.
    """
    if before is None:
        return HandlerResult(handler_id=handler_id, status=ResultStatus.PENDING, expires_ts=OFFERED_AT_ONCE)
    return HandlerResult(
        handler_id=handler_id,
        status=ResultStatus.PENDING,
        attempts=before.attempts,
        error=before.error,
        execution_time_ms=before.execution_time_ms,
        fence=before.fence,
        expires_ts=OFFERED_AT_ONCE,
    )
