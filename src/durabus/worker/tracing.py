"""Hooks for tracing: told what happens, able to add metadata and a context, never able to change an outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from durabus.model.event import Event
from durabus.model.statuses import EventStatus

logger = logging.getLogger("durabus.tracing")


class Tracing(Protocol):
    """What a tracer implements. Whatever it raises is logged, and the event goes on as if it had not been asked."""

    def publishing(self, event_type: str) -> Mapping[str, Any]:
        """Metadata to send along with an event, such as ``traceparent``; what the publisher gives goes before it."""
        ...

    def handling(self, event: Event, handler_id: str) -> AbstractContextManager[object]:
        """Entered around every call of a handler, in the context the handler runs in.

        It is left with the exception if the call failed: raised, returned, timed out or cancelled. A span of
        OpenTelemetry then ends with that exception and the status ERROR by itself.
        """
        ...

    def settled(self, event: Event, status: EventStatus) -> None:
        """An attempt of the event was settled and left it in ``status``."""
        ...


def metadata_of(tracing: Tracing, event_type: str, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The metadata of an event that is being published."""
    try:
        return {**tracing.publishing(event_type), **(given or {})}
    except Exception:
        logger.exception("tracing could not add to the metadata of %s", event_type)
        return given


class TracedCall:
    """One call of a handler under a tracer. Its exception is known here, though the caller gets an outcome instead."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        """Leave the tracer's context with ``error``."""
        self.error = error


@contextmanager
def traced(tracing: Tracing, event: Event, handler_id: str) -> Iterator[TracedCall]:
    """Around one call of a handler. A tracer that fails costs its span and nothing else."""
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
        call.error = None  # its traceback leads back to this call: do not wait for the garbage collector


def _leave(span: AbstractContextManager[object], error: BaseException | None, what: str) -> None:
    try:
        span.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)
    except BaseException as raised:
        if raised is not error:  # a context manager may raise again what it was given
            if not isinstance(raised, Exception):
                raise
            logger.exception("tracing could not end with %s", what)


def tell_settled(tracing: Tracing, event: Event, status: EventStatus) -> None:
    """An attempt was settled."""
    try:
        tracing.settled(event, status)
    except Exception:
        logger.exception("tracing could not take note of the end of event %s", event.event_id)
