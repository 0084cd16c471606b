"""How a claim ends: completed, failed or given back. One batch may mix all three.

Their texts are made to fit every store here, when a settlement is made, so that no store has a rule of its own.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr

from durabus.model.claim import ClaimRef
from durabus.model.limits import stored_text, stored_texts
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus

NO_HANDLER = "no handler"
"""The reason of an event that completed, or went back to the queue, because no node had a handler for it."""


class Complete(msgspec.Struct, frozen=True, gc=False):
    """Every handler is done. COMPLETED, or COMPLETED_WITH_ERRORS if ``errors`` or an unrecoverable result say so."""

    ref: ClaimRef
    results: tuple[HandlerResult, ...] = ()
    errors: tuple[str, ...] = ()
    execution_time_ms: float | None = None
    status_code: int | None = None
    reason: str | None = None
    """Why the event completed without work, such as "no handler"; for its log entry."""

    def __post_init__(self) -> None:
        """Keep what every store can hold."""
        if self.errors:
            force_setattr(self, "errors", stored_texts(self.errors))
        if self.reason is not None:
            force_setattr(self, "reason", stored_text(self.reason))


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed. Eligible again after ``delay``; ``delay=None``, or no attempt left, means FAILED."""

    ref: ClaimRef
    error: str
    delay: float | None
    results: tuple[HandlerResult, ...] = ()
    execution_time_ms: float | None = None
    status_code: int | None = None

    def __post_init__(self) -> None:
        """Keep what every store can hold."""
        force_setattr(self, "error", stored_text(self.error))


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the event back without costing it an attempt; ``results`` keeps what was done meanwhile."""

    ref: ClaimRef
    delay: float = 0.0
    results: tuple[HandlerResult, ...] = ()
    reason: str | None = None
    """Why the event is given back; for its log entry."""

    def __post_init__(self) -> None:
        """Keep what every store can hold."""
        if self.reason is not None:
            force_setattr(self, "reason", stored_text(self.reason))


Settlement = Complete | Fail | Release


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What a settlement led to."""

    id: int
    status: EventStatus
    next_retry_ts: float | None = None
