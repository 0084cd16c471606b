"""The documents of the endpoints beside the seven: whole events, claims and settlements, made for programs.

Instants are seconds since 1970 (``*_ts``), exact, as the library has them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from durabus.http.schema.events import NewEventDocument, payload_of, title_of
from durabus.http.schema.fields import (
    MAX_CLAIMS,
    BatchSize,
    ClaimToken,
    Fence,
    Id,
    Lease,
    Milliseconds,
    Name,
    RetryLimit,
    Seconds,
    StatusCode,
    TagsOrNone,
    Text,
    Wait,
    WorkerId,
    join_tags,
)
from durabus.model.claim import Claim, ClaimRef
from durabus.model.event import Event
from durabus.model.limits import MAX_BATCH
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import Action, EventMode, EventStatus

MAX_ERRORS = 100


class WholeEventDocument(msgspec.Struct, gc=False):
    """Everything about an event."""

    id: int
    event_id: str
    bus: str
    type: str
    title: str
    description: str | None
    tags: str
    status: EventStatus
    payload: Any
    metadata: Any
    priority: int
    attempts: int
    retry_count: int
    max_retries: RetryLimit | None
    generation: int
    fence: int
    worker_id: str | None
    errors: tuple[str, ...]
    parent_id: str | None
    idempotency_key: str | None
    created_ts: float
    updated_ts: float
    due_ts: float
    picked_ts: float | None
    started_ts: float | None
    expires_ts: float | None


class NewEventsDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Events to publish in one step, all or none."""

    events: Annotated[list[NewEventDocument], Meta(min_length=1, max_length=MAX_BATCH)]


class WholeEventsDocument(msgspec.Struct, kw_only=True):
    """Events in the order asked for."""

    events: list[WholeEventDocument]


class ClaimRequestDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Ask for up to ``limit`` events. A ``token`` of your own makes the request repeatable after a lost reply."""

    worker_id: WorkerId
    limit: BatchSize = 1
    tags: TagsOrNone = ""
    bus: Name | None = None
    lease: Lease | None = None
    mode: EventMode = EventMode.PARALLEL
    token: ClaimToken | None = None


class WaitingClaimRequestDocument(ClaimRequestDocument, forbid_unknown_fields=True, kw_only=True):
    """The same, and how long to wait while there is nothing."""

    wait: Wait = 0.0


class ClaimDocument(msgspec.Struct, kw_only=True, gc=False):
    """A claim: the event, and what its settlement must carry."""

    id: int
    token: str
    fence: int
    event: WholeEventDocument
    results: tuple[HandlerResult, ...]
    revision: str


class ClaimsDocument(msgspec.Struct, kw_only=True):
    """What was claimed; empty if there was nothing."""

    claims: list[ClaimDocument]


class ClaimRefDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A claim that the sender holds."""

    id: Id
    token: ClaimToken
    fence: Fence

    @property
    def ref(self) -> ClaimRef:
        """As the store knows it."""
        return ClaimRef(self.id, self.token, self.fence)


class CompleteClaimDocument(
    ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="complete"
):
    """The work is done; with ``errors`` the event ends COMPLETED_WITH_ERRORS."""

    errors: Annotated[list[Text], Meta(max_length=MAX_ERRORS)] = []
    execution_time_ms: Milliseconds | None = None
    status_code: StatusCode | None = None
    reason: Text | None = None

    def settlement(self, _retry_delay: float) -> Settlement:
        """For the store."""
        return Complete(self.ref, (), tuple(self.errors), self.execution_time_ms, self.status_code, self.reason)


class FailClaimDocument(ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="fail"):
    """The work failed: another attempt after ``delay`` seconds; absent: the server's default; null: none, FAILED."""

    error_message: Text
    delay: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    execution_time_ms: Milliseconds | None = None
    status_code: StatusCode | None = None

    def settlement(self, retry_delay: float) -> Settlement:
        """For the store."""
        delay = retry_delay if self.delay is msgspec.UNSET else self.delay
        return Fail(self.ref, self.error_message, delay, (), self.execution_time_ms, self.status_code)


class ReleaseClaimDocument(
    ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="release"
):
    """Give the event back; the attempt does not count."""

    delay: Seconds = 0.0
    reason: Text | None = None

    def settlement(self, _retry_delay: float) -> Settlement:
        """For the store."""
        return Release(self.ref, self.delay, (), self.reason)


SettlementDocument = CompleteClaimDocument | FailClaimDocument | ReleaseClaimDocument


class SettleDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """End claims, each judged by itself, and claim the next ones in the same step."""

    settlements: Annotated[list[SettlementDocument], Meta(max_length=MAX_CLAIMS)]
    then_claim: ClaimRequestDocument | None = None


class OutcomeDocument(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Where the event stands now, or why the claim was refused (then nothing of it was written)."""

    id: int
    status: EventStatus | None = None
    next_retry_ts: float | None = None
    lost: str | None = None


class SettledDocument(msgspec.Struct, kw_only=True):
    """One outcome for each settlement, in their order."""

    outcomes: list[OutcomeDocument]
    claims: list[ClaimDocument]


class RenewDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Claims to keep for longer."""

    claims: Annotated[list[ClaimRefDocument], Meta(min_length=1, max_length=MAX_CLAIMS)]
    lease: Lease | None = None


class RenewalDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Until when the claim lasts, or why it was lost."""

    id: int
    expires_ts: float | None = None
    lost: str | None = None


class RenewedDocument(msgspec.Struct, kw_only=True):
    """One renewal for each claim, in their order."""

    claims: list[RenewalDocument]


class DeadLetterListDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Dead letters, newest first."""

    events: list[WholeEventDocument]
    total: int
    limit: int
    offset: int
    total_capped: bool = False


class RequeueDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters to bring back, all or none."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_CLAIMS)]


class PurgeDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters to delete for ever: those created so long ago or earlier."""

    older_than_days: Annotated[float, Meta(ge=0, le=36_500)]
    bus: Name | None = None


class PurgedDocument(msgspec.Struct, kw_only=True):
    """How many went."""

    purged: int


class StatsDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many events a bus has in each status. ``capped``: at least so many, nobody counted further."""

    bus: str
    pending: int
    processing: int
    completed: int
    completed_with_errors: int
    failed: int
    capped: bool = False


class LogLineDocument(msgspec.Struct, kw_only=True):
    """A transition, as the tail tells it."""

    position: str
    action: Action
    id: int
    event_id: str
    bus: str
    type: str
    status: EventStatus
    at_ts: float
    attempt: int
    fence: int
    worker_id: str | None
    error: str | None
    reason: str | None
    next_retry_ts: float | None
    execution_time_ms: float | None
    status_code: int | None


def whole_event(event: Event) -> WholeEventDocument:
    """Everything about an event."""
    title, description = title_of(event)
    # By place: more than 15 keywords make CPython build a dict for the call, which triples its cost.
    return WholeEventDocument(
        event.id,
        event.event_id,
        event.bus,
        event.type,
        title,
        description,
        join_tags(event.tags),
        event.status,
        payload_of(event.payload_json),
        None if event.metadata_json is None else payload_of(event.metadata_json),
        event.priority,
        event.attempts,
        len(event.errors),
        event.max_attempts,
        event.generation,
        event.fence,
        event.worker_id,
        event.errors,
        event.parent_id,
        event.idempotency_key,
        event.created_ts,
        event.updated_ts,
        event.due_ts,
        event.picked_ts,
        event.started_ts,
        event.expires_ts,
    )


def claim_document(claim: Claim) -> ClaimDocument:
    """A claim and its event."""
    event = claim.event
    return ClaimDocument(
        id=event.id,
        token=claim.token,
        fence=event.fence,
        event=whole_event(event),
        results=claim.results,
        revision=claim.revision,
    )


def log_line(entry: LogEntry) -> LogLineDocument:
    """A log entry without payload and results."""
    return LogLineDocument(
        position=entry.position,
        action=entry.action,
        id=entry.id,
        event_id=entry.event_id,
        bus=entry.bus,
        type=entry.type,
        status=entry.status,
        at_ts=entry.at_ts,
        attempt=entry.attempt,
        fence=entry.fence,
        worker_id=entry.worker_id,
        error=entry.error,
        reason=entry.reason,
        next_retry_ts=entry.next_retry_ts,
        execution_time_ms=entry.execution_time_ms,
        status_code=entry.status_code,
    )
