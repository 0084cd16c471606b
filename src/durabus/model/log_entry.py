"""One line of the event log."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from durabus.model.payload import decode_payload
from durabus.model.result import HandlerResult
from durabus.model.statuses import Action, EventStatus


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transition of one event. Terminal entries carry payload, results and all errors: they stand alone."""

    position: str = ""
    """Opaque cursor in commit order, given by the store."""
    action: Action
    id: int
    event_id: str
    bus: str
    type: str
    status: EventStatus
    """The event's status after this transition."""
    at_ts: float
    created_ts: float
    attempt: int
    generation: int
    fence: int
    worker_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """Why the transition happened, where that is no error: of RESET, and of RELEASED and COMPLETED if one was given."""
    next_retry_ts: float | None = None
    execution_time_ms: float | None = None
    status_code: int | None = None
    tags: tuple[str, ...] = ()
    metadata_json: str | None = None
    parent_id: str | None = None
    payload_json: str | None = None
    errors: tuple[str, ...] = ()
    results: tuple[HandlerResult, ...] = ()

    @property
    def at(self) -> datetime:
        """When the transition was committed, by the store's clock."""
        return datetime.fromtimestamp(self.at_ts, UTC)

    @property
    def created_at(self) -> datetime:
        """When the event was published."""
        return datetime.fromtimestamp(self.created_ts, UTC)

    @property
    def payload(self) -> Any:
        """The payload of a terminal entry; None in the others."""
        return None if self.payload_json is None else decode_payload(self.payload_json)


class LogPage(msgspec.Struct, frozen=True):
    """A stretch of the log. ``next`` is what the next ``read_log(after=…)`` takes."""

    entries: list[LogEntry]
    next: str


HELD_AFTER = 1.0
"""Seconds. Every transaction holds the log back while it commits; one that takes longer is worth a word."""


class LogHold(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is still open and keeps the readers of a log from entries that are committed already."""

    pid: int | None
    """Of its session; None for a prepared transaction, which has none."""
    application: str
    """The name that its session gave itself; for a prepared transaction, its own name."""
    age: float
    """Seconds since it began."""
    waiting: float
    """Seconds since the oldest entry that it holds back was written."""

    @property
    def holder(self) -> str:
        """Pid, age and application, for a message."""
        session = "a prepared transaction" if self.pid is None else f"the transaction of pid {self.pid}"
        return f"{session} ({self.application}), open for {self.age:.0f} s"


LOG_COLUMNS: tuple[str, ...] = LogEntry.__struct_fields__
"""What a row of ``LogRows`` holds, in this order; tags, errors and results are JSON text, None when there are none."""


class LogRows(msgspec.Struct, frozen=True):
    """A stretch of the log, undecoded. ``next`` is what the next ``read_log_rows(after=…)`` takes."""

    rows: list[tuple[Any, ...]]
    next: str


def row_of(entry: LogEntry) -> tuple[Any, ...]:
    """An entry as a row of ``LogRows``, for stores that hold entries and no columns."""
    plain = msgspec.structs.astuple(entry)
    return tuple(_column(value) for value in plain)


def _column(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgspec.json.encode(value).decode() if value else None
    return value.value if isinstance(value, StrEnum) else value
