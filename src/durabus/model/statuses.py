"""The statuses of events and handler results, the actions in the log, and the modes of a bus."""

from __future__ import annotations

from enum import StrEnum


class EventStatus(StrEnum):
    """The status of an event."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """The event ended because a caller cancelled it, or because it expired before it was begun."""


LIVE = frozenset({EventStatus.PENDING, EventStatus.PROCESSING})
DEAD_LETTER = frozenset({EventStatus.COMPLETED_WITH_ERRORS, EventStatus.FAILED})
HISTORY = frozenset({EventStatus.COMPLETED, EventStatus.CANCELLED})
"""Ended events that are not dead letters. The history of a bus keeps them until retention deletes them."""
TERMINAL = DEAD_LETTER | HISTORY


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
    CANCELLED = "CANCELLED"


class ResultStatus(StrEnum):
    """The status of one handler for one event."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    SUCCEEDED = "SUCCEEDED"
    TRANSIENT = "TRANSIENT"
    UNRECOVERABLE = "UNRECOVERABLE"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    """The handler never started, because another handler's result was enough."""
    ABORTED = "ABORTED"
    """The handler was stopped while it ran, because another handler's result was enough."""
    KEPT = "KEPT"
    """A step of the handler has ended. The value is what the step returned."""
    WAITING = "WAITING"
    """The handler waits for another event. The value is the condition."""


STEPS = frozenset({ResultStatus.KEPT, ResultStatus.WAITING})
"""Results of steps: they tell nothing about the handler itself."""


SETTLED = frozenset(
    {
        ResultStatus.SUCCEEDED,
        ResultStatus.UNRECOVERABLE,
        ResultStatus.CANCELLED,
        ResultStatus.ABORTED,
        ResultStatus.KEPT,
    }
)
"""Statuses that no further attempt changes."""


class EventMode(StrEnum):
    """Which lock a claim takes together with its events."""

    GLOBAL_SERIAL = "global-serial"
    BUS_SERIAL = "bus-serial"
    PARALLEL = "parallel"


class HandlerMode(StrEnum):
    """Whether the handlers of one event run one at a time or in parallel."""

    SERIAL = "serial"
    PARALLEL = "parallel"


class OnUnhandled(StrEnum):
    """What happens to an event if no node has a handler for it."""

    COMPLETE = "complete"
    KEEP = "keep"
    DEAD_LETTER = "dead_letter"


class ResultMode(StrEnum):
    """When the store learns that one of several handlers of an event has succeeded."""

    SOON = "soon"
    """After 25 ms, unless the event ends sooner."""
    STRICT = "strict"
    """Before the next handler begins."""


class Takeover(StrEnum):
    """When the claims of a process that has ended are free for other processes."""

    PRESENCE = "presence"
    """As soon as the store sees that the process has ended, if it can see that."""
    LEASE = "lease"
    """When their leases are over."""


class Completion(StrEnum):
    """When an event is done: after all of its handlers, or after the first one with a result."""

    ALL = "all"
    FIRST = "first"
