"""The rows of the tables of a snapshot, and their conversion from and to the state of a replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.lifecycle.state import EventState, HandlerState, LockState, Record
from durabus.model.claim import LockClaim
from durabus.model.event import Event, NewEvent
from durabus.model.handler import BusInfo, HandlerInfo
from durabus.model.result import HandlerResult
from durabus.model.statuses import Action, EventStatus
from durabus.stores.replicated_log.commands import Join
from durabus.stores.replicated_log.core import CoreTables
from durabus.stores.replicated_log.replica import Attached, SenderSession, SnapshotMark

TABLES = ("event_buses", "event_handlers", "events", "event_results", "locks", "event_log", "sessions", "replica")


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a ``SenderSession``."""

    name: str
    low: int
    seen: list[int]
    last_ts: float
    commands: list[tuple[int, int, bytes]]
    events: list[tuple[int, int, NewEvent]]


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a replica has only once."""

    settings: Join | None
    applied: int
    skipped: int
    marks: list[SnapshotMark]
    attached: list[Attached]
    next_id: int
    last_fence: int
    last_revision: int
    last_number: int
    held: list[tuple[str, list[int]]]
    event_locks: list[tuple[str, LockClaim]]
    positions: dict[str, str]
    processes: dict[str, float]
    unpublished: list[NewEvent]
    fingerprints: dict[str, int]
    """The fingerprint of the newest record of each lane."""


class BusRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a bus. ``place`` is its number in the order of registration."""

    place: int
    info: BusInfo
    revision: str | None


class HandlerRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a handler's registration."""

    bus: str
    place: int
    info: HandlerInfo
    kept_until: float | None


class LogRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A log record without the fields of its event. ``event`` is set only if the event was deleted.

    The defaults are those of a PUBLISHED record. There may be millions of them for events that were never claimed.
    These add nothing to their events, so one row stands for ``count`` records with consecutive numbers and ids.
    """

    number: int
    id: int
    action: Action
    at_ts: float
    count: int = 1
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
    reason: str | None = None
    handler_id: str | None = None


class NewRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """An event that was never claimed: it has only what its publisher gave. There may be millions of them."""

    id: int
    event_id: str
    bus: str
    type: str
    payload_json: str
    created_ts: float
    due_ts: float
    metadata_json: str | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0
    max_attempts: int | None = None
    parent_id: str | None = None
    idempotency_key: str | None = None

    def state(self) -> EventState:
        """Return the state of the event."""
        return EventState(
            Event(
                id=self.id,
                event_id=self.event_id,
                bus=self.bus,
                type=self.type,
                payload_json=self.payload_json,
                metadata_json=self.metadata_json,
                tags=self.tags,
                priority=self.priority,
                max_attempts=self.max_attempts,
                parent_id=self.parent_id,
                idempotency_key=self.idempotency_key,
                created_ts=self.created_ts,
                updated_ts=self.created_ts,
                due_ts=self.due_ts,
            )
        )


class EventBlock(msgspec.Struct, frozen=True, array_like=True):
    """Events with neighbouring ids. Their handlers have their own table."""

    new: list[NewRow]
    others: list[EventState]

    def states(self) -> list[EventState]:
        """Return the states of the events."""
        return [row.state() for row in self.new] + self.others


DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "event_buses": msgspec.msgpack.Decoder(list[BusRow]),
    "event_handlers": msgspec.msgpack.Decoder(list[HandlerRow]),
    "events": msgspec.msgpack.Decoder(list[EventBlock]),
    "event_results": msgspec.msgpack.Decoder(list[tuple[int, tuple[HandlerState, ...]]]),
    "locks": msgspec.msgpack.Decoder(list[LockState]),
    "event_log": msgspec.msgpack.Decoder(list[LogRow]),
    "sessions": msgspec.msgpack.Decoder(list[SessionRow]),
    "replica": msgspec.msgpack.Decoder(list[ReplicaRow]),
}


def _is_new(event: Event) -> bool:
    """Return whether nothing happened to the event after its publishing. A cancelled event may have fence 0, too."""
    return event.fence == 0 and event.status is EventStatus.PENDING


def event_block(states: Iterable[EventState]) -> EventBlock:
    """Return the block of these events."""
    new: list[NewRow] = []
    others: list[EventState] = []
    for state in states:
        event = state.event
        if not _is_new(event):
            others.append(replace(state, handlers=()) if state.handlers else state)
            continue
        new.append(
            NewRow(
                event.id,
                event.event_id,
                event.bus,
                event.type,
                event.payload_json,
                event.created_ts,
                event.due_ts,
                event.metadata_json,
                event.tags,
                event.priority,
                event.max_attempts,
                event.parent_id,
                event.idempotency_key,
            )
        )
    return EventBlock(new, others)


def bus_rows(tables: CoreTables) -> Iterator[BusRow]:
    """Yield the rows of all buses."""
    for place, (info, revision) in enumerate(tables.buses):
        yield BusRow(place, info, revision)


def handler_rows(tables: CoreTables) -> Iterator[HandlerRow]:
    """Yield the rows of all registrations."""
    for place, (bus, info, kept_until) in enumerate(tables.handlers):
        yield HandlerRow(bus, place, info, kept_until)


def log_rows(log: Iterable[tuple[int, Record]], known: dict[int, Event], block_bits: int) -> Iterator[LogRow]:
    """Yield the rows of all log records. No row spans two blocks. ``known`` are the events that have rows."""

    def run_of(counted: tuple[int, tuple[int, Record]]) -> tuple[int, int, int] | None:
        place, (number, record) = counted
        here = known.get(record.event.id)
        if here is None or not _is_new(here):
            return None
        return number - place, number - record.event.id, number >> block_bits

    for run, members in groupby(enumerate(log), run_of):
        if run is None:
            yield from (_log_row(number, record, known) for _, (number, record) in members)
        else:
            (_, (number, record)), *more = members
            yield LogRow(number, record.event.id, Action.PUBLISHED, record.at_ts, 1 + len(more))


def _log_row(number: int, record: Record, known: dict[int, Event]) -> LogRow:
    event = record.event
    return LogRow(
        number,
        event.id,
        record.action,
        record.at_ts,
        1,
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
        record.reason,
        record.handler_id,
    )


def _as_published(event: Event) -> Event:
    """Return the event without the fields that its log entries carry themselves."""
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


def numbered_records(rows: Iterable[LogRow], events: dict[int, Event]) -> Iterator[tuple[int, Record]]:
    """Yield the log records of these rows, with their numbers."""
    for row in rows:
        event = events.get(row.id)
        if row.action is Action.PUBLISHED and event is not None and _is_new(event):
            of = [events[id_] for id_ in range(row.id, row.id + row.count)]
            records = [Record(Action.PUBLISHED, event, event.created_ts) for event in of]
            yield from zip(range(row.number, row.number + row.count), records, strict=True)
        else:
            yield row.number, _record(row, events)


def _record(row: LogRow, events: dict[int, Event]) -> Record:
    event = row.event or events[row.id]
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
        row.reason,
        row.handler_id,
    )


def session_row(name: str, session: SenderSession) -> SessionRow:
    """Return the row of a session."""
    pieces = [(number, place, piece) for number, have in session.pieces.items() for place, piece in have.items()]
    return SessionRow(
        name,
        session.low,
        sorted(session.seen),
        session.last_ts,
        [(number, place, piece) for number, place, piece in pieces if isinstance(piece, bytes)],
        [(number, place, piece) for number, place, piece in pieces if isinstance(piece, NewEvent)],
    )


def session_of(row: SessionRow) -> SenderSession:
    """Return the session of a row."""
    session = SenderSession()
    session.low, session.seen, session.last_ts = row.low, set(row.seen), row.last_ts
    pieces: list[tuple[int, int, bytes | NewEvent]] = [*row.commands, *row.events]
    for number, place, piece in pieces:
        session.pieces.setdefault(number, {})[place] = piece
    return session
