"""The documents of the seven endpoints, field by field as the design document has them, in its order."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from durabus.http.schema.fields import (
    MAX_ID,
    ClaimToken,
    Fence,
    Milliseconds,
    Name,
    Priority,
    Retries,
    RetryLimit,
    Seconds,
    StatusCode,
    TagsOrNone,
    Text,
    Title,
    TypeName,
    Uuid,
    WorkerId,
    as_number,
    join_tags,
    split_tags,
    type_of,
)
from durabus.model.event import Event, NewEvent, new_event
from durabus.model.log_entry import LogEntry
from durabus.model.statuses import Action, EventStatus

LOG_ID_BITS = 20
"""A log entry's number is its event's, and its place in the event's trail: unique for events below 2^43."""
RAW = msgspec.json.Decoder(msgspec.Raw)
METADATA = msgspec.json.Decoder(dict[str, Any])


class NewEventDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An event to publish. Only ``title`` is needed; from ``type`` on the fields go beyond the design document."""

    title: Title
    description: Text | None = None
    tags: TagsOrNone = ""
    payload: Any = None
    type: TypeName | None = None
    bus: Name | None = None
    event_id: Uuid | None = None
    metadata: dict[str, Any] | None = None
    priority: Priority = 0
    delay: Seconds = 0.0
    max_retries: Retries | None = None
    parent_id: Uuid | None = None
    idempotency_key: Name | None = None

    def new_event(self, *, bus: str, max_retries: int) -> NewEvent:
        """Checked and encoded. Title and description that the type does not tell travel as metadata."""
        type_, metadata = self.type or type_of(self.title), self.metadata
        if self.title != type_:
            metadata = {**(metadata or {}), "title": self.title}
        if self.description is not None:
            metadata = {**(metadata or {}), "description": self.description}
        return new_event(
            type_,
            self.payload,
            bus=self.bus or bus,
            event_id=self.event_id,
            metadata=metadata,
            tags=split_tags(self.tags),
            priority=self.priority,
            delay=self.delay,
            max_attempts=self.max_retries or max_retries,
            parent_id=self.parent_id,
            idempotency_key=self.idempotency_key,
        )


class EventDocument(msgspec.Struct, kw_only=True):
    """An event with its payload."""

    id: int
    title: str
    description: str | None
    tags: str
    status: EventStatus
    payload: Any
    retry_count: int
    max_retries: RetryLimit
    next_retry_at: str | None
    created_at: str
    updated_at: str


class LogEntryDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker did. Fields that an action has no use for are left out."""

    id: int
    event_id: int | None = None
    worker_id: str
    action: str
    status_code: int | None = None
    error_message: str | None = None
    reason: str | None = None
    execution_time_ms: float | None = None
    created_at: str


class EventWithLogsDocument(EventDocument, kw_only=True, omit_defaults=True):
    """An event, and with ``include_logs`` what its workers did."""

    logs: list[LogEntryDocument] | None = None


class JobDocument(msgspec.Struct, kw_only=True):
    """An event that a worker was given. Token and fence of the claim are in the headers."""

    id: int
    title: str
    tags: str
    status: EventStatus
    payload: Any
    retry_count: int
    max_retries: RetryLimit
    created_at: str


class EventSummaryDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event in a list; ``next_retry_at`` only while it waits for a retry."""

    id: int
    title: str
    status: EventStatus
    tags: str
    retry_count: int
    next_retry_at: str | None = None
    created_at: str
    updated_at: str


class EventListDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A page, newest first. ``total_capped``: there are more, but nobody counted them."""

    events: list[EventSummaryDocument]
    total: int
    limit: int
    offset: int
    total_capped: bool = False


class ProofDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token and fence of a claim, as the headers of ``GET /events/subscribe`` gave them."""

    token: ClaimToken
    fence: Fence


class CompleteDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The work is done. With ``claim`` the claim is proved, without it only named by its worker."""

    worker_id: WorkerId
    execution_time_ms: Milliseconds | None = None
    status_code: StatusCode | None = None
    claim: ProofDocument | None = None


class FailDocument(CompleteDocument, forbid_unknown_fields=True, kw_only=True):
    """The work failed."""

    error_message: Text = "no error message was given"


class StartDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The work begins, or goes on."""

    worker_id: WorkerId
    claim: ProofDocument | None = None


class CompletedDocument(msgspec.Struct, kw_only=True):
    """What was recorded."""

    event_id: int
    worker_id: str
    action: str
    status_code: int | None
    execution_time_ms: float | None
    created_at: str


class StartedDocument(msgspec.Struct, kw_only=True):
    """What was recorded, and until when the event is the worker's if nothing more is heard."""

    event_id: int
    worker_id: str
    action: str
    expires_at: str
    created_at: str


class FailedDocument(msgspec.Struct, kw_only=True):
    """What was recorded, and when the event is tried again."""

    event_id: int
    worker_id: str
    action: str
    status_code: int | None
    error_message: str
    execution_time_ms: float | None
    retry_scheduled: bool
    next_retry_at: str
    created_at: str


class MaxRetriesDocument(msgspec.Struct, kw_only=True):
    """That was the last attempt: the event is FAILED."""

    error: str = "Max retries exceeded"
    retry_count: int
    max_retries: RetryLimit


def iso(instant: float) -> str:
    """An instant as the design document writes it: whole seconds, UTC."""
    return _iso(int(instant))


@lru_cache(maxsize=4096)
def _iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:-6] + "Z"


def payload_of(text: str) -> Any:
    """Stored JSON as it is, without decoding it; what was damaged by hand is shown as a string."""
    try:
        return RAW.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def title_of(event: Event) -> tuple[str, str | None]:
    """Title and description. An event that was not published over HTTP has its type as title."""
    if event.metadata_json is None:
        return event.type, None
    try:
        metadata = METADATA.decode(event.metadata_json)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return event.type, None  # damaged by hand
    title, description = metadata.get("title"), metadata.get("description")
    return title if isinstance(title, str) else event.type, description if isinstance(description, str) else None


def _retry_at(event: Event) -> str | None:
    return None if event.next_retry_at is None else iso(event.due_ts)


def event_document(event: Event, max_retries: int) -> EventDocument:
    """As ``POST /events`` answers."""
    title, description = title_of(event)
    return EventDocument(
        id=event.id,
        title=title,
        description=description,
        tags=join_tags(event.tags),
        status=event.status,
        payload=payload_of(event.payload_json),
        retry_count=event.retry_count,
        max_retries=event.max_attempts or max_retries,
        next_retry_at=_retry_at(event),
        created_at=iso(event.created_ts),
        updated_at=iso(event.updated_ts),
    )


def event_with_logs(event: Event, max_retries: int, entries: list[LogEntry] | None) -> EventWithLogsDocument:
    """As ``GET /events/{id}`` answers."""
    plain = event_document(event, max_retries)
    logs = None if entries is None else log_documents(entries, with_event_id=False)
    return EventWithLogsDocument(**msgspec.structs.asdict(plain), logs=logs)


def job_document(event: Event, max_retries: int) -> JobDocument:
    """As ``GET /events/subscribe`` answers."""
    return JobDocument(
        id=event.id,
        title=title_of(event)[0],
        tags=join_tags(event.tags),
        status=event.status,
        payload=payload_of(event.payload_json),
        retry_count=event.retry_count,
        max_retries=event.max_attempts or max_retries,
        created_at=iso(event.created_ts),
    )


def summary_document(event: Event) -> EventSummaryDocument:
    """As ``GET /events`` lists it."""
    return EventSummaryDocument(
        id=event.id,
        title=title_of(event)[0],
        status=event.status,
        tags=join_tags(event.tags),
        retry_count=event.retry_count,
        next_retry_at=_retry_at(event),
        created_at=iso(event.created_ts),
        updated_at=iso(event.updated_ts),
    )


def log_documents(entries: list[LogEntry], *, with_event_id: bool) -> list[LogEntryDocument]:
    """The trail of what workers did; publishing and requeueing are nobody's work."""
    return [
        LogEntryDocument(
            id=(entry.id << LOG_ID_BITS | place) & MAX_ID,
            event_id=entry.id if with_event_id else None,
            worker_id=entry.worker_id,
            action=entry.action,
            status_code=entry.status_code,
            error_message=entry.reason if entry.action is Action.RESET else entry.error,
            reason=None if entry.action is Action.RESET else entry.reason,
            execution_time_ms=as_number(entry.execution_time_ms),
            created_at=iso(entry.at_ts),
        )
        for place, entry in enumerate(entries)
        if entry.worker_id is not None
    ]
