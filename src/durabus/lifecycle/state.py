"""The state of an event, the commands that change it, and the outcome of a command."""

from __future__ import annotations

import msgspec

from durabus.model.claim import ClaimRef
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult, with_first_success
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled
from durabus.model.statuses import TERMINAL, Action, EventStatus


class HandlerState(msgspec.Struct, frozen=True, gc=False):
    """One handler's result and the claim on it, if one is held."""

    result: HandlerResult
    token: str | None = None
    settled_token: str | None = None
    """The token of the claim that settled the result last. An exact repeat of that settlement is not refused."""
    lock_key: str | None = None
    """The lock of a serial mode that the claim on the event held when the handler was claimed."""


class SettledClaim(msgspec.Struct, frozen=True, gc=False):
    """The newest settlement that took effect. An exact repeat of it is not refused."""

    token: str
    fence: int
    action: Action
    outcome: Settled


class AbandonedClaim(msgspec.Struct, frozen=True, gc=False):
    """The claim that the event lost with its lease or its process, as long as the event has not been claimed again.

    The event still has the fence of this claim. The last of its errors is the one that the abandonment added.
    """

    token: str
    worker_id: str | None
    picked_ts: float | None
    started_ts: float | None


class EventState(msgspec.Struct, frozen=True, gc=False):
    """An event, the token of its current claim, its handlers, and how its last claims ended."""

    event: Event
    token: str | None = None
    handlers: tuple[HandlerState, ...] = ()
    settled: SettledClaim | None = None
    abandoned: AbandonedClaim | None = None
    waits_for_children: bool = False
    """The event was released until its children have ended, and was not claimed since."""

    def settles(self, ref: ClaimRef) -> bool:
        """Return whether a settlement by ``ref`` counts: it is the newest claim, and either current or abandoned.

        Late but not overtaken counts: an abandoned claim may still settle the event and its handlers until the event is
        claimed again. It may not be renewed or started, because other workers can claim the event.
        """
        if self.event.fence != ref.fence:
            return False
        if self.event.status is EventStatus.PROCESSING:
            return self.token == ref.token
        return self.abandoned is not None and self.abandoned.token == ref.token

    @property
    def results(self) -> tuple[HandlerResult, ...]:
        """The results of the handlers."""
        return tuple(handler.result for handler in self.handlers) if self.handlers else ()


class LockState(msgspec.Struct, frozen=True, kw_only=True):
    """A lock. ``token`` is None while the lock is free; ``fence`` stays."""

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
    """Record that the worker began."""

    ref: ClaimRef


class Renew(msgspec.Struct, frozen=True):
    """Extend the lease to ``lease`` seconds from now."""

    ref: ClaimRef
    lease: float


class Expire(msgspec.Struct, frozen=True):
    """Take the event back if its lease is over, or if its claim belongs to the process that has ``ended``."""

    max_attempts: int | None = None
    ended: str | None = None
    """The incarnation of a process that has ended."""


class Requeue(msgspec.Struct, frozen=True):
    """Put a dead letter back into the queue."""


class Reset(msgspec.Struct, frozen=True):
    """Take the event from its worker, on behalf of an administrator."""

    reason: str


class Revoke(msgspec.Struct, frozen=True):
    """Cancel the event, whether it waits or runs, on behalf of a caller that holds no claim."""

    reason: str


EventCommand = Grant | Start | Renew | Complete | Fail | Release | Cancel | Expire | Requeue | Reset | Revoke


class Record(msgspec.Struct, frozen=True, gc=False):
    """What a transition writes to the log. ``event`` is the event after it; ``entry`` builds the log entry."""

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
    handler_id: str | None = None
    """The handler of ``Complete.handler_id``. Only ``entry`` makes its result: most records are never read."""

    def entry(self, position: str = "") -> LogEntry:
        """Return the log entry. A terminal entry carries the whole event, a PUBLISHED entry all but the payload."""
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
            results=with_first_success(self.results, self.handler_id, self.execution_time_ms),
        )


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The command took effect. An exact repeat of a command is applied too, with nothing to log."""

    state: EventState
    records: tuple[Record, ...] = ()

    @property
    def entries(self) -> tuple[LogEntry, ...]:
        """The records as log entries, without positions."""
        return tuple(record.entry() for record in self.records)


class Refused(msgspec.Struct, frozen=True):
    """The command changed nothing."""

    reason: str


NOT_YOURS = "another claim holds it, or it was settled, released, reset, cancelled or taken over"
NOT_DONE = "some handlers have not settled"
NOT_ELIGIBLE = "not pending and due"
NOT_EXPIRED = "not processing, or its lease is not over"
NOT_OF_PROCESS = "not claimed by that process"
NOT_DEAD = "not a dead letter"
NOT_PROCESSING = "not processing"
NOT_LIVE = "it has ended"
HELD = "held by another claim"
