"""The rows of a snapshot's tables, and what they are rows of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.backends.fold.commands import Join
from durabus.backends.fold.core import CoreTables
from durabus.backends.fold.replica import Attached, Mark, Session
from durabus.kernel.state import EventState, HandlerState, LockState, Record
from durabus.model.claim import LockClaim
from durabus.model.event import Event, NewEvent
from durabus.model.handler import BusInfo, HandlerInfo
from durabus.model.result import HandlerResult
from durabus.model.statuses import Action, EventStatus

TABLES = ("event_buses", "event_handlers", "events", "event_results", "locks", "event_log", "sessions", "fold")


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """A ``Session``."""

    name: str
    low: int
    seen: list[int]
    last_ts: float
    commands: list[tuple[int, int, bytes]]
    events: list[tuple[int, int, NewEvent]]


class FoldRow(msgspec.Struct, frozen=True, kw_only=True):
    """What there is once."""

    settings: Join | None
    applied: int
    skipped: int
    marks: list[Mark]
    attached: list[Attached]
    next_id: int
    last_fence: int
    last_revision: int
    last_number: int
    held: list[tuple[str, list[int]]]
    event_locks: list[tuple[int, LockClaim]]
    positions: dict[str, str]


class BusRow(msgspec.Struct, frozen=True, array_like=True):
    """A bus; ``place`` is its place in the order of registration."""

    place: int
    info: BusInfo
    revision: str | None


class HandlerRow(msgspec.Struct, frozen=True, array_like=True):
    """A registration."""

    bus: str
    place: int
    info: HandlerInfo
    kept_until: float | None


class LogRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A log record without what its event says too; ``event`` is there if that is gone.

    The defaults are those of a PUBLISHED record, of which there may be millions.
    """

    number: int
    id: int
    action: Action
    at_ts: float
    status: EventStatus = EventStatus.PENDING
    attempts: int = 0
    generation: int = 0
    fence: int = 0
    errors: tuple[str, ...] = ()
    worker_id: str | None = None
    error: str | None = None
    execution_time_ms: float | None = None
    status_code: int | None = None
    next_retry_ts: float | None = None
    results: tuple[HandlerResult, ...] = ()
    event: Event | None = None


_GIVEN = ("id", "event_id", "bus", "type", "payload_json", "created_ts", "updated_ts", "due_ts")
_MAY_BE_GIVEN = {
    "metadata_json": None,
    "tags": (),
    "priority": 0,
    "max_attempts": None,
    "parent_id": None,
    "idempotency_key": None,
}

DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "event_buses": msgspec.msgpack.Decoder(list[BusRow]),
    "event_handlers": msgspec.msgpack.Decoder(list[HandlerRow]),
    "events": msgspec.msgpack.Decoder(list[EventState]),
    "event_results": msgspec.msgpack.Decoder(list[tuple[int, tuple[HandlerState, ...]]]),
    "locks": msgspec.msgpack.Decoder(list[LockState]),
    "event_log": msgspec.msgpack.Decoder(list[LogRow]),
    "sessions": msgspec.msgpack.Decoder(list[SessionRow]),
    "fold": msgspec.msgpack.Decoder(list[FoldRow]),
}


def state_row(state: EventState) -> EventState | dict[str, Any]:
    """Its handlers are rows of their own. One that nobody ever claimed has only what its publisher gave it."""
    event = state.event
    if event.fence == 0:
        given = {name: getattr(event, name) for name in _GIVEN}
        for name, default in _MAY_BE_GIVEN.items():
            if (value := getattr(event, name)) != default:
                given[name] = value
        return {"event": given}
    return replace(state, handlers=()) if state.handlers else state


def bus_rows(tables: CoreTables) -> Iterator[BusRow]:
    """Of all buses."""
    for place, (info, revision) in enumerate(tables.buses):
        yield BusRow(place, info, revision)


def handler_rows(tables: CoreTables) -> Iterator[HandlerRow]:
    """Of all handlers."""
    for place, (bus, info, kept_until) in enumerate(tables.handlers):
        yield HandlerRow(bus, place, info, kept_until)


def log_row(number: int, record: Record, known: dict[int, Event]) -> LogRow:
    """Of a record; ``known`` are the events that have rows."""
    event = record.event
    return LogRow(
        number,
        event.id,
        record.action,
        record.at_ts,
        event.status,
        event.attempts,
        event.generation,
        event.fence,
        event.errors,
        record.worker_id,
        record.error,
        record.execution_time_ms,
        record.status_code,
        record.next_retry_ts,
        record.results,
        None if event.id in known else _as_published(event),
    )


def _as_published(event: Event) -> Event:
    """Without what an entry does not tell: the rest may have come from another moment of the event."""
    return replace(
        event,
        status=EventStatus.PENDING,
        attempts=0,
        generation=0,
        fence=0,
        worker_id=None,
        errors=(),
        updated_ts=event.created_ts,
        due_ts=event.created_ts,
        picked_ts=None,
        started_ts=None,
        expires_ts=None,
    )


def record_of(row: LogRow, events: dict[int, Event]) -> Record:
    """The record again."""
    event = row.event or events[row.id]
    if row.action is Action.PUBLISHED and event.fence == 0:
        return Record(Action.PUBLISHED, event, row.at_ts)
    here = (row.status, row.attempts, row.generation, row.fence, row.errors)
    if here != (event.status, event.attempts, event.generation, event.fence, event.errors):
        event = replace(
            event,
            status=row.status,
            attempts=row.attempts,
            generation=row.generation,
            fence=row.fence,
            errors=row.errors,
        )
    return Record(
        row.action,
        event,
        row.at_ts,
        row.worker_id,
        row.error,
        row.execution_time_ms,
        row.status_code,
        row.next_retry_ts,
        row.results,
    )


def session_row(name: str, session: Session) -> SessionRow:
    """Of a session."""
    pieces = [(number, place, piece) for number, have in session.pieces.items() for place, piece in have.items()]
    return SessionRow(
        name,
        session.low,
        sorted(session.seen),
        session.last_ts,
        [(number, place, piece) for number, place, piece in pieces if isinstance(piece, bytes)],
        [(number, place, piece) for number, place, piece in pieces if isinstance(piece, NewEvent)],
    )


def session_of(row: SessionRow) -> Session:
    """The session again."""
    session = Session()
    session.low, session.seen, session.last_ts = row.low, set(row.seen), row.last_ts
    pieces: list[tuple[int, int, bytes | NewEvent]] = [*row.commands, *row.events]
    for number, place, piece in pieces:
        session.pieces.setdefault(number, {})[place] = piece
    return session
