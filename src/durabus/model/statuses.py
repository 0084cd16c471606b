"""The words for where an event, a handler result or a mode stands."""

from __future__ import annotations

from enum import StrEnum


class EventStatus(StrEnum):
    """Where an event is in its life."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"
    FAILED = "FAILED"


LIVE = frozenset({EventStatus.PENDING, EventStatus.PROCESSING})
DEAD_LETTER = frozenset({EventStatus.COMPLETED_WITH_ERRORS, EventStatus.FAILED})
TERMINAL = DEAD_LETTER | {EventStatus.COMPLETED}


class Action(StrEnum):
    """What a log entry records."""

    PUBLISHED = "PUBLISHED"
    PICKED = "PICKED"
    STARTED = "STARTED"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"
    FAILED = "FAILED"
    RELEASED = "RELEASED"
    ABANDONED = "ABANDONED"
    REQUEUED = "REQUEUED"
    RESET = "RESET"


class ResultStatus(StrEnum):
    """What one handler has done with one event so far."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    SUCCEEDED = "SUCCEEDED"
    TRANSIENT = "TRANSIENT"
    UNRECOVERABLE = "UNRECOVERABLE"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    """Never started: another handler's answer was enough."""
    ABORTED = "ABORTED"
    """Stopped while it ran: another handler's answer was enough."""


SETTLED = frozenset({ResultStatus.SUCCEEDED, ResultStatus.UNRECOVERABLE, ResultStatus.CANCELLED, ResultStatus.ABORTED})
"""Results that no further attempt will change."""


class EventMode(StrEnum):
    """Which lock a claim takes together with its events."""

    GLOBAL_SERIAL = "global-serial"
    BUS_SERIAL = "bus-serial"
    PARALLEL = "parallel"


class HandlerMode(StrEnum):
    """Whether the handlers of one event exclude each other."""

    SERIAL = "serial"
    PARALLEL = "parallel"


class OnUnhandled(StrEnum):
    """What becomes of an event that no node has a handler for."""

    COMPLETE = "complete"
    KEEP = "keep"
    DEAD_LETTER = "dead_letter"


class Completion(StrEnum):
    """When an event is done: after all of its handlers, or with the first answer."""

    ALL = "all"
    FIRST = "first"
