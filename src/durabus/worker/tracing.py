"""Hooks for tracing: a tracer can add metadata and a context to an event, but cannot change its outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from durabus.model.event import Event
from durabus.model.statuses import EventStatus

logger = logging.getLogger("durabus.tracing")


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
        logger.exception("tracing could not add to the metadata of %s", event_type)
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
        logger.exception("tracing could not begin with handler %s of event %s", handler_id, event.event_id)
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
            logger.exception("tracing could not end with %s", what)


def tell_settled(tracing: Tracing, event: Event, status: EventStatus) -> None:
    """Tell the tracer that an attempt was settled."""
    try:
        tracing.settled(event, status)
    except Exception:
        logger.exception("tracing failed at the end of event %s", event.event_id)
