"""What a worker reports of its work: counters by event type, traces, and log lines of slow and failed attempts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, Self

import msgspec

from durabus.model.event import Event
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.worker.handler import Handler

logger = logging.getLogger("durabus.retry")
slow_logger = logging.getLogger("durabus.slow")
tracing_logger = logging.getLogger("durabus.tracing")


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Totals by event type."""

    completed: dict[str, int]
    cancelled: dict[str, int]
    """Events that a worker cancelled because they had expired."""
    retries: dict[str, int]
    success_after_retry: dict[str, int]
    dead_letters: dict[str, int]
    lease_lost: dict[str, int]
    unhandled: dict[str, int]
    """Events that no node had a handler for."""


class Metrics:
    """The counters of one process; add those of all processes for a fleet."""

    def __init__(self) -> None:
        self._completed: Counter[str] = Counter()
        self._cancelled: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._success_after_retry: Counter[str] = Counter()
        self._dead_letters: Counter[str] = Counter()
        self._lease_lost: Counter[str] = Counter()
        self._unhandled: Counter[str] = Counter()

    def settled(self, event: Event, status: EventStatus, *, failed: bool) -> None:
        """Count a settled attempt of ``event``, which is now in ``status``."""
        if status is EventStatus.COMPLETED:
            self._completed[event.type] += 1
            if event.attempts > 1:
                self._success_after_retry[event.type] += 1
        elif status in DEAD_LETTER:
            self._dead_letters[event.type] += 1
        elif status is EventStatus.CANCELLED:
            self._cancelled[event.type] += 1
        elif failed:
            self._retries[event.type] += 1

    def lost(self, event: Event) -> None:
        """Count a claim on ``event`` that was lost before it was settled."""
        self._lease_lost[event.type] += 1

    def unhandled(self, event: Event) -> None:
        """Count ``event``, which was claimed and has no handler on any node."""
        self._unhandled[event.type] += 1

    def snapshot(self) -> MetricsSnapshot:
        """Return a copy of the counters."""
        return MetricsSnapshot(
            completed=dict(self._completed),
            cancelled=dict(self._cancelled),
            retries=dict(self._retries),
            success_after_retry=dict(self._success_after_retry),
            dead_letters=dict(self._dead_letters),
            lease_lost=dict(self._lease_lost),
            unhandled=dict(self._unhandled),
        )


class Tracing(Protocol):
    """What a tracer implements. durabus logs whatever it raises, and the event continues as if there were no tracer."""

    def publishing(self, event_type: str) -> Mapping[str, Any]:
        """Metadata to add to an event, such as ``traceparent``. The publisher's own metadata overrides it."""
        ...

    def handling(self, event: Event, handler_id: str) -> AbstractContextManager[object]:
        """A context manager that durabus enters around every call of a handler, in the handler's own context.

        If the call failed (raised, returned an error, timed out or was cancelled), ``__exit__`` gets the exception: a
        span of OpenTelemetry then ends with that exception and the status ERROR by itself.
        """
        ...

    def settled(self, event: Event, status: EventStatus) -> None:
        """An attempt of the event was settled, and the event is now in ``status``."""
        ...


def metadata_of(tracing: Tracing, event_type: str, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the metadata of an event to publish: the tracer's and the publisher's."""
    try:
        return {**tracing.publishing(event_type), **(given or {})}
    except Exception:
        tracing_logger.exception("tracing could not add to the metadata of %s", event_type)
        return given


class TracedCall:
    """One call of a handler under a tracer. It keeps the exception, because the caller only gets an outcome."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        """Leave the tracer's context with ``error``."""
        self.error = error


@contextmanager
def traced(tracing: Tracing, event: Event, handler_id: str) -> Iterator[TracedCall]:
    """Trace one call of a handler. If the tracer fails, only its span is lost."""
    call = TracedCall()
    try:
        span = tracing.handling(event, handler_id)
        span.__enter__()
    except Exception:
        tracing_logger.exception("tracing could not begin with handler %s of event %s", handler_id, event.event_id)
        yield call
        return
    try:
        yield call
    except BaseException as error:
        call.failed(error)
        raise
    finally:
        _leave(span, call.error, f"handler {handler_id} of event {event.event_id}")
        call.error = None  # its traceback refers to this call: do not leave the cycle to the garbage collector


def _leave(span: AbstractContextManager[object], error: BaseException | None, what: str) -> None:
    try:
        span.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)
    except BaseException as raised:
        if raised is not error:  # a context manager may raise again what it was given
            if not isinstance(raised, Exception):
                raise
            tracing_logger.exception("tracing could not end with %s", what)


def tell_settled(tracing: Tracing, event: Event, status: EventStatus) -> None:
    """Tell the tracer that an attempt was settled."""
    try:
        tracing.settled(event, status)
    except Exception:
        tracing_logger.exception("tracing failed at the end of event %s", event.event_id)


def log_failed_attempt(
    event: Event, handler: Handler, error: str, delay: float | None, traceback: str | None = None
) -> None:
    """Log a warning with the fields of the attempt as extras. ``delay_ms`` is None if there is no further attempt.

    The last attempt is logged as an error with its traceback: every formatter shows ``exc_text`` below the line.
    """
    level = logging.ERROR if delay is None else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    delay_ms = None if delay is None else round(delay * 1000)
    what_next = "no further attempt" if delay_ms is None else f"next in {delay_ms} ms"
    limit = handler.retry.max_attempts
    file, line, function, _ = logger.findCaller()
    record = logger.makeRecord(
        logger.name,
        level,
        file,
        line,
        "event %s (%s), handler %s: attempt %s of %s failed, %s: %s",
        (event.event_id, event.type, handler.id, event.attempts, limit or "unlimited", what_next, error),
        None,
        function,
        extra={
            "event_id": event.event_id,
            "event_type": event.type,
            "subscription_id": handler.id,
            "attempt": event.attempts,
            "max_attempts": limit,
            "delay_ms": delay_ms,
            "error": error,
        },
    )
    record.exc_text = traceback if delay is None else None
    logger.handle(record)


class SlowWarning:
    """Logs one warning if the block takes longer than ``after`` seconds."""

    def __init__(self, event: Event, handler_id: str | None, after: float) -> None:
        self._event = event
        self._handler_id = handler_id
        self._after = after
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._after, self._warn)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _warn(self) -> None:
        event, what = self._event, "event" if self._handler_id is None else f"handler {self._handler_id} of event"
        slow_logger.warning(
            "%s %s (%s) takes longer than %g s, attempt %s",
            what,
            event.event_id,
            event.type,
            self._after,
            event.attempts,
            extra={
                "event_id": event.event_id,
                "event_type": event.type,
                "subscription_id": self._handler_id,
                "attempt": event.attempts,
                "slow_after": self._after,
            },
        )
