"""Documents of the endpoints beyond the seven of the design document: whole events, claims, settlements.

The server encodes them and the client decodes them. Times are seconds since 1970 (``*_ts``), exact, as in the library.
"""

from __future__ import annotations

from typing import Annotated

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
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settlement
from durabus.model.statuses import Action, EventMode, EventStatus

MAX_ERRORS = 100
NO_METADATA = msgspec.Raw(b"null")


class WholeEventDocument(msgspec.Struct, gc=False):
    """An event with all its fields."""

    id: int
    event_id: str
    bus: str
    type: str
    title: str
    description: str | None
    tags: str
    status: EventStatus
    payload: msgspec.Raw
    metadata: msgspec.Raw
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
    """Events to publish in one step: all of them or none."""

    events: Annotated[list[NewEventDocument], Meta(min_length=1, max_length=MAX_BATCH)]


class WholeEventsDocument(msgspec.Struct, kw_only=True):
    """Events, in the order of the request."""

    events: list[WholeEventDocument]


class CancelledEventsDocument(WholeEventsDocument, kw_only=True, omit_defaults=True):
    """The cancelled events, parents first. ``others_left``: this token may not see some live descendants."""

    others_left: bool = False


class ClaimRequestDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for up to ``limit`` events. With your own ``token`` you can repeat it after a lost response."""

    worker_id: WorkerId
    limit: BatchSize = 1
    tags: TagsOrNone = ""
    bus: Name | None = None
    lease: Lease | None = None
    mode: EventMode = EventMode.PARALLEL
    token: ClaimToken | None = None


class WaitingClaimRequestDocument(ClaimRequestDocument, forbid_unknown_fields=True, kw_only=True):
    """A request for events, with the seconds to wait if there are none."""

    wait: Wait = 0.0


class ClaimDocument(msgspec.Struct, kw_only=True, gc=False):
    """A claim: the event, and the token and fence that its settlement needs."""

    id: int
    token: str
    fence: int
    event: WholeEventDocument
    results: tuple[HandlerResult, ...]
    revision: str


class ClaimsDocument(msgspec.Struct, kw_only=True):
    """The claims; empty if there was no event to claim."""

    claims: list[ClaimDocument]


class ClaimRefDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A claim that the sender holds."""

    id: Id
    token: ClaimToken
    fence: Fence

    @property
    def ref(self) -> ClaimRef:
        """The claim as the store identifies it."""
        return ClaimRef(self.id, self.token, self.fence)


class CompleteClaimDocument(
    ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="complete"
):
    """The work is done. With ``errors`` the event ends COMPLETED_WITH_ERRORS."""

    errors: Annotated[list[Text], Meta(max_length=MAX_ERRORS)] = []
    execution_time_ms: Milliseconds | None = None
    status_code: StatusCode | None = None
    reason: Text | None = None

    def settlement(self, _retry_delay: float) -> Settlement:
        """The settlement for the store."""
        return Complete(self.ref, (), tuple(self.errors), self.execution_time_ms, self.status_code, self.reason)


class FailClaimDocument(ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="fail"):
    """The work failed. The next attempt follows after ``delay`` seconds.

    Without ``delay`` the server's default applies. With null there is no further attempt: the event is FAILED.
    """

    error_message: Text
    delay: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    execution_time_ms: Milliseconds | None = None
    status_code: StatusCode | None = None

    def settlement(self, retry_delay: float) -> Settlement:
        """The settlement for the store."""
        delay = retry_delay if self.delay is msgspec.UNSET else self.delay
        return Fail(self.ref, self.error_message, delay, (), self.execution_time_ms, self.status_code)


class ReleaseClaimDocument(
    ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="release"
):
    """Return the event to the queue. The attempt does not count."""

    delay: Seconds = 0.0
    reason: Text | None = None

    def settlement(self, _retry_delay: float) -> Settlement:
        """The settlement for the store."""
        return Release(self.ref, self.delay, (), self.reason)


class CancelClaimDocument(
    ClaimRefDocument, forbid_unknown_fields=True, kw_only=True, tag_field="outcome", tag="cancel"
):
    """End the event CANCELLED: the worker does not begin it."""

    reason: Text

    def settlement(self, _retry_delay: float) -> Settlement:
        """The settlement for the store."""
        return Cancel(self.ref, self.reason)


SettlementDocument = CompleteClaimDocument | FailClaimDocument | ReleaseClaimDocument | CancelClaimDocument


class SettleDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Claims to end, each independent of the others, and a request for the next claims in the same step."""

    settlements: Annotated[list[SettlementDocument], Meta(max_length=MAX_CLAIMS)]
    then_claim: ClaimRequestDocument | None = None


class OutcomeDocument(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The new status of the event, or why the settlement was refused (then nothing was written)."""

    id: int
    status: EventStatus | None = None
    next_retry_ts: float | None = None
    lost: str | None = None


class SettledDocument(msgspec.Struct, kw_only=True):
    """One outcome for each settlement, in the same order, and the next claims."""

    outcomes: list[OutcomeDocument]
    claims: list[ClaimDocument]


class RenewDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Claims to keep for longer."""

    claims: Annotated[list[ClaimRefDocument], Meta(min_length=1, max_length=MAX_CLAIMS)]
    lease: Lease | None = None


class RenewalDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """When the claim expires, or why it was lost."""

    id: int
    expires_ts: float | None = None
    lost: str | None = None


class RenewedDocument(msgspec.Struct, kw_only=True):
    """One renewal for each claim, in the same order."""

    claims: list[RenewalDocument]


class DeadLetterListDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Dead letters, newest first."""

    events: list[WholeEventDocument]
    total: int
    limit: int
    offset: int
    total_capped: bool = False


class RequeueDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters to requeue: all of them or none."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_CLAIMS)]


class PurgeDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to delete permanently: those older than this many days."""

    older_than_days: Annotated[float, Meta(ge=0, le=36_500)]
    bus: Name | None = None


class PurgedDocument(msgspec.Struct, kw_only=True):
    """How many dead letters were deleted."""

    purged: int


class StatsDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many events a bus has in each status. ``capped``: counting stopped, so there may be more."""

    bus: str
    pending: int
    processing: int
    completed: int
    completed_with_errors: int
    failed: int
    cancelled: int
    capped: bool = False


class LogLineDocument(msgspec.Struct, kw_only=True):
    """A transition of an event, as the tail sends it."""

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
    """The document of an event."""
    title, description = title_of(event)
    # Positional: with more than 15 keywords CPython builds a dict for the call, which triples its cost.
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
        NO_METADATA if event.metadata_json is None else payload_of(event.metadata_json),
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
    """The document of a claim."""
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
    """The document of a log entry, without payload and results."""
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
