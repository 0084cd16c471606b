"""Entries of the event log, and pages of them."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from durabus.model.result import HandlerResult
from durabus.model.statuses import Action, EventStatus
from durabus.model.upcasting import decode_newest


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transition of one event. Terminal entries carry payload, results and all errors, so that they stand alone."""

    position: str = ""
    """An opaque cursor in commit order. The store gives it."""
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
    """Why a RESET, CANCELLED, RELEASED or COMPLETED transition happened, if a reason was given."""
    next_retry_ts: float | None = None
    execution_time_ms: float | None = None
    status_code: int | None = None
    tags: tuple[str, ...] = ()
    metadata_json: str | None = None
    parent_id: str | None = None
    payload_json: str | None = None
    errors: tuple[str, ...] = ()
    results: tuple[HandlerResult, ...] = ()
    """In a terminal entry, the results of all handlers, also of a single one that succeeded without a value."""

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
        """The payload of a terminal entry, in the newest version that an upcaster makes; None in other entries."""
        if self.payload_json is None:
            return None
        return decode_newest(self.type, self.metadata_json, self.payload_json)


class LogPage(msgspec.Struct, frozen=True):
    """A page of the log. Pass ``next`` to the next ``read_log(after=…)``."""

    entries: list[LogEntry]
    next: str


HELD_AFTER = 1.0
"""Seconds. Every transaction delays the log while it commits; one that takes longer than this is reported."""


class LogArchives(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of a log: the readers that keep a copy of it, and that no trim passes."""

    positions: dict[str, str]
    """The saved position of each archive, by its name."""
    trimmed: bool
    """Whether any entry was ever trimmed."""


class LogHold(msgspec.Struct, frozen=True, kw_only=True):
    """An open transaction that hides committed entries from the readers of the log."""

    pid: int | None
    """The process id of its session; None for a prepared transaction, which has no session."""
    application: str
    """The application name of its session; for a prepared transaction, the name of the transaction."""
    age: float
    """Seconds since the transaction began."""
    waiting: float
    """Seconds since the oldest entry that it hides was written."""

    @property
    def holder(self) -> str:
        """A description of the transaction for messages: pid, application and age."""
        session = "a prepared transaction" if self.pid is None else f"the transaction of pid {self.pid}"
        return f"{session} ({self.application}), open for {self.age:.0f} s"


LOG_COLUMNS: tuple[str, ...] = LogEntry.__struct_fields__
"""The columns of a row of ``LogRows``, in order. Tags, errors and results are JSON text, or None if there are none."""


class LogRows(msgspec.Struct, frozen=True):
    """A page of the log, undecoded. Pass ``next`` to the next ``read_log_rows(after=…)``."""

    rows: list[tuple[Any, ...]]
    next: str


def row_of(entry: LogEntry) -> tuple[Any, ...]:
    """Return an entry as a row of ``LogRows``, for stores that hold entries instead of columns."""
    plain = msgspec.structs.astuple(entry)
    return tuple(_column(value) for value in plain)


def _column(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgspec.json.encode(value).decode() if value else None
    return value.value if isinstance(value, StrEnum) else value
