"""Documents of the seven endpoints. Fields and their order are those of the design document."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from durabus.http.schema.fields import (
    MAX_ID,
    ClaimToken,
    DueAt,
    ExpiresAfter,
    ExpiresAt,
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
from durabus.model.statuses import Action, EventStatus, ResultStatus

LOG_ID_BITS = 20
"""The number of a log entry is made of its event's id and its place in the event's log: unique for ids below 2^43."""
RAW = msgspec.json.Decoder(msgspec.Raw)
METADATA = msgspec.json.Decoder(dict[str, Any])


class NewEventDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An event to publish. Only ``title`` is required. The design document does not have ``type`` and what follows."""

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
    at: DueAt | None = None
    expires: ExpiresAfter | ExpiresAt | None = None
    max_retries: Retries | None = None
    parent_id: Uuid | None = None
    idempotency_key: Name | None = None

    def new_event(self, *, bus: str, max_retries: int) -> NewEvent:
        """The checked event for the store. A title that differs from the type, and the description, become metadata."""
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
            at=self.at,
            expires=self.expires,
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
    """What a worker did. Fields that an action does not use are omitted. A caller that cancels has no ``worker_id``."""

    id: int
    event_id: int | None = None
    worker_id: str
    action: str
    status_code: int | None = None
    error_message: str | None = None
    reason: str | None = None
    execution_time_ms: float | None = None
    created_at: str


class StepDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A durable step of a handler, a sleep, or a wait for an event."""

    name: str
    attempts: int
    execution_time_ms: float | None = None
    value: Any = None
    """What the step returned, if that has at most 4,096 characters as JSON; ``value_chars`` is its length."""
    value_chars: int | None = None
    hidden: bool = False
    """Whether the wait was met by an event that this token may not see: then there is no ``value``."""
    sleeps_until: str | None = None
    waits_for: str | None = None
    """The event that the handler waits for, such as ``payment.settled where order_id=7``, while it has not come."""
    waits_until: str | None = None


class HandlerDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one handler did with the event. While its first attempt runs, only its steps are known."""

    handler_id: str
    status: ResultStatus
    attempts: int | None = None
    execution_time_ms: float | None = None
    error: str | None = None
    value: Any = None
    steps: list[StepDocument] = msgspec.field(default_factory=list)


class EventWithLogsDocument(EventDocument, kw_only=True, omit_defaults=True):
    """An event, with what workers did if ``include_logs`` is set, and its handlers if ``include_results`` is set."""

    logs: list[LogEntryDocument] | None = None
    handlers: list[HandlerDocument] | None = None


class JobDocument(msgspec.Struct, kw_only=True):
    """An event that a worker has claimed. The headers hold the token and fence of the claim."""

    id: int
    title: str
    tags: str
    status: EventStatus
    payload: Any
    retry_count: int
    max_retries: RetryLimit
    created_at: str


class EventSummaryDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event in a list. It has ``next_retry_at`` only while it waits for a retry."""

    id: int
    title: str
    status: EventStatus
    tags: str
    retry_count: int
    next_retry_at: str | None = None
    created_at: str
    updated_at: str


class EventListDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A page of events, newest first. ``total_capped``: counting stopped, so there may be more."""

    events: list[EventSummaryDocument]
    total: int
    limit: int
    offset: int
    total_capped: bool = False


class ProofDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token and fence of a claim, from the headers of ``GET /events/subscribe``."""

    token: ClaimToken
    fence: Fence


class CompleteDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The work is done. ``claim`` proves the claim; without it the worker's name identifies the claim."""

    worker_id: WorkerId
    execution_time_ms: Milliseconds | None = None
    status_code: StatusCode | None = None
    claim: ProofDocument | None = None


class FailDocument(CompleteDocument, forbid_unknown_fields=True, kw_only=True):
    """The work failed."""

    error_message: Text = "no error message was given"


class StartDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The work begins or continues."""

    worker_id: WorkerId
    claim: ProofDocument | None = None


class CompletedDocument(msgspec.Struct, kw_only=True):
    """The recorded completion."""

    event_id: int
    worker_id: str
    action: str
    status_code: int | None
    execution_time_ms: float | None
    created_at: str


class StartedDocument(msgspec.Struct, kw_only=True):
    """The recorded start, and when the lease expires unless the worker renews it."""

    event_id: int
    worker_id: str
    action: str
    expires_at: str
    created_at: str


class FailedDocument(msgspec.Struct, kw_only=True):
    """The recorded failure, and when the next attempt is due."""

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
    """The last attempt failed: the event is FAILED."""

    error: str = "Max retries exceeded"
    retry_count: int
    max_retries: RetryLimit


def iso(instant: float) -> str:
    """A time in the format of the design document: whole seconds, UTC."""
    return _iso(int(instant))


@lru_cache(maxsize=4096)
def _iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:-6] + "Z"


def payload_of(text: str) -> Any:
    """Stored JSON without decoding it. Text that is not JSON is returned as a string."""
    try:
        return RAW.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def title_of(event: Event) -> tuple[str, str | None]:
    """The title and description of an event. An event that was not published over HTTP has its type as title."""
    if event.metadata_json is None:
        return event.type, None
    try:
        metadata = METADATA.decode(event.metadata_json)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return event.type, None  # the stored text was changed by hand
    title, description = metadata.get("title"), metadata.get("description")
    return title if isinstance(title, str) else event.type, description if isinstance(description, str) else None


def _retry_at(event: Event) -> str | None:
    return None if event.next_retry_at is None else iso(event.due_ts)


def event_document(event: Event, max_retries: int) -> EventDocument:
    """The document that ``POST /events`` returns."""
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


def event_with_logs(
    event: Event, max_retries: int, entries: list[LogEntry] | None, handlers: list[HandlerDocument] | None
) -> EventWithLogsDocument:
    """The document that ``GET /events/{id}`` returns."""
    plain = event_document(event, max_retries)
    logs = None if entries is None else log_documents(entries, with_event_id=False)
    return EventWithLogsDocument(**msgspec.structs.asdict(plain), logs=logs, handlers=handlers)


def job_document(event: Event, max_retries: int) -> JobDocument:
    """The document that ``GET /events/subscribe`` returns."""
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
    """The document of an event in ``GET /events``."""
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
    """What workers did with an event, and that it was cancelled. Other entries without a worker are omitted."""
    return [
        LogEntryDocument(
            id=(entry.id << LOG_ID_BITS | place) & MAX_ID,
            event_id=entry.id if with_event_id else None,
            worker_id=entry.worker_id or "",
            action=entry.action,
            status_code=entry.status_code,
            error_message=entry.reason if entry.action is Action.RESET else entry.error,
            reason=None if entry.action is Action.RESET else entry.reason,
            execution_time_ms=as_number(entry.execution_time_ms),
            created_at=iso(entry.at_ts),
        )
        for place, entry in enumerate(entries)
        if entry.worker_id is not None or entry.action is Action.CANCELLED
    ]
