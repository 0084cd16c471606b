"""What the kernel folds commands into."""

from __future__ import annotations

import msgspec

from durabus.model.claim import ClaimRef
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settled
from durabus.model.statuses import TERMINAL, Action, EventStatus


class HandlerState(msgspec.Struct, frozen=True, gc=False):
    """One handler's result and the claim on it, if one is held."""

    result: HandlerResult
    token: str | None = None
    settled_token: str | None = None
    """The claim that last settled the result: its exact repeat is answered, not refused."""


class SettledClaim(msgspec.Struct, frozen=True, gc=False):
    """The newest settlement that took effect: its exact repeat is answered, not refused."""

    token: str
    fence: int
    action: Action
    answer: Settled


class AbandonedClaim(msgspec.Struct, frozen=True, gc=False):
    """The claim that was taken from the event because its lease was over, while nobody has claimed the event since.

    The fence is still the event's. The last error of the event is the one that the abandonment added.
    """

    token: str
    worker_id: str | None
    picked_ts: float | None
    started_ts: float | None


class EventState(msgspec.Struct, frozen=True, gc=False):
    """An event, the secret of its present claim, its handlers, and how its last claims ended."""

    event: Event
    token: str | None = None
    handlers: tuple[HandlerState, ...] = ()
    settled: SettledClaim | None = None
    abandoned: AbandonedClaim | None = None

    def settles(self, ref: ClaimRef) -> bool:
        """Whether ``ref`` is the newest grant, and still holds the event or was abandoned with nobody after it.

        Late but not overtaken counts: a settlement of such a claim is accepted, and so is the result of a handler
        under it. It may not be renewed or started: to all others the event is free.
        """
        if self.event.fence != ref.fence:
            return False
        if self.event.status is EventStatus.PROCESSING:
            return self.token == ref.token
        return self.abandoned is not None and self.abandoned.token == ref.token

    @property
    def results(self) -> tuple[HandlerResult, ...]:
        """The handlers' results."""
        return tuple(handler.result for handler in self.handlers) if self.handlers else ()


class LockState(msgspec.Struct, frozen=True, kw_only=True):
    """A lock resource. ``token`` is None while nobody holds it; ``fence`` stays."""

    key: str
    fence: int
    worker_id: str
    token: str | None
    expires_ts: float


class Grant(msgspec.Struct, frozen=True):
    """Claim this event for a worker."""

    worker_id: str
    token: str
    lease: float
    max_attempts: int | None = None


class Start(msgspec.Struct, frozen=True):
    """The worker began."""

    ref: ClaimRef


class Renew(msgspec.Struct, frozen=True):
    """Extend the lease to ``lease`` seconds from now."""

    ref: ClaimRef
    lease: float


class Expire(msgspec.Struct, frozen=True):
    """Take the event from a worker whose lease is over."""

    max_attempts: int | None = None


class Requeue(msgspec.Struct, frozen=True):
    """Bring a dead letter back."""


class Reset(msgspec.Struct, frozen=True):
    """An administrator takes the event from its worker."""

    reason: str


Command = Grant | Start | Renew | Complete | Fail | Release | Expire | Requeue | Reset


class Record(msgspec.Struct, frozen=True, gc=False):
    """What a transition has to say to the log; ``entry`` spells it out for readers, ``event`` is the state after it."""

    action: Action
    event: Event
    at_ts: float
    worker_id: str | None = None
    error: str | None = None
    execution_time_ms: float | None = None
    status_code: int | None = None
    next_retry_ts: float | None = None
    results: tuple[HandlerResult, ...] = ()
    reason: str | None = None

    def entry(self, position: str = "") -> LogEntry:
        """The log entry. A terminal one carries the whole event, PUBLISHED all but the payload."""
        event = self.event
        terminal = event.status in TERMINAL
        whole = terminal or self.action is Action.PUBLISHED
        return LogEntry(
            position=position,
            action=self.action,
            id=event.id,
            event_id=event.event_id,
            bus=event.bus,
            type=event.type,
            status=event.status,
            at_ts=self.at_ts,
            created_ts=event.created_ts,
            attempt=event.attempts,
            generation=event.generation,
            fence=event.fence,
            worker_id=self.worker_id,
            error=self.error,
            reason=self.reason,
            next_retry_ts=self.next_retry_ts,
            execution_time_ms=self.execution_time_ms,
            status_code=self.status_code,
            tags=event.tags if whole else (),
            metadata_json=event.metadata_json if whole else None,
            parent_id=event.parent_id if whole else None,
            payload_json=event.payload_json if terminal else None,
            errors=event.errors if terminal else (),
            results=self.results,
        )


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The command took effect, or is the exact repeat of one that did (then with nothing to log)."""

    state: EventState
    records: tuple[Record, ...] = ()

    @property
    def entries(self) -> tuple[LogEntry, ...]:
        """The records as log entries, without positions."""
        return tuple(record.entry() for record in self.records)


class Refused(msgspec.Struct, frozen=True):
    """The command changed nothing."""

    reason: str


NOT_YOURS = "another claim holds it, or it was settled, released, reset or taken over"
NOT_DONE = "some handlers have not settled"
NOT_ELIGIBLE = "not pending and due"
NOT_EXPIRED = "not processing, or its lease is not over"
NOT_DEAD = "not a dead letter"
NOT_PROCESSING = "not processing"
HELD = "held by another claim"
