"""Converts rows to values and back. Payloads stay encoded: a damaged one must not stop the queue.

The SQL of both stores lists its columns in the order that these functions take and return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.lifecycle.state import HandlerState, LockState, SettledClaim
from durabus.model.claim import LockClaim
from durabus.model.event import Event, NewEvent
from durabus.model.log_entry import LOG_COLUMNS, LogEntry
from durabus.model.result import HandlerResult, first_success
from durabus.model.settlement import Settled
from durabus.model.statuses import HISTORY, Action, EventStatus, ResultStatus

Row = Sequence[Any]

_STATUSES = {status.value: status for status in EventStatus}
_ACTIONS = {action.value: action for action in Action}
_RESULT_STATUSES = {status.value: status for status in ResultStatus}

_encode = msgspec.json.Encoder().encode
_strings = msgspec.json.Decoder(tuple[str, ...]).decode
_results = msgspec.json.Decoder(tuple[HandlerResult, ...]).decode
_handler_id = msgspec.json.Decoder(str).decode
_NOT_THE_EVENT = (None,) * 7
_SHOWN = 200
"""Number of characters of a damaged list that are shown."""
RESULTS, TIME = LOG_COLUMNS.index("results"), LOG_COLUMNS.index("execution_time_ms")
QUOTE = '"'


def to_json(value: Any) -> str:
    """Return a value as JSON: a list for one parameter, or a list column."""
    return _encode(value).decode()


def strings_to(values: tuple[str, ...]) -> str | None:
    """Return tags or errors as a column; NULL if there are none."""
    return _encode(values).decode() if values else None


def strings_of(column: str | None) -> tuple[str, ...]:
    """Return tags or errors from a column. A damaged column becomes one text: it must not stop the queue."""
    if column is None:
        return ()
    try:
        return _strings(column)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return (f"undecodable: {column[:_SHOWN]}",)


def results_to(results: tuple[HandlerResult, ...]) -> str | None:
    """Return results as a column of the log; NULL if there are none."""
    return _encode(results).decode() if results else None


def results_of(column: str | None, time_ms: float | None) -> tuple[HandlerResult, ...]:
    """Return results from a column of the log. The id of a handler stands for its success at its first call."""
    if column is None:
        return ()
    return (first_success(_handler_id(column), time_ms),) if column.startswith(QUOTE) else _results(column)


def log_row(row: Row) -> tuple[Any, ...]:
    """Return the columns ``{entry}`` with the results written out, as ``LogRows`` holds them; damaged ones as is."""
    column = row[RESULTS]
    if column is None or not column.startswith(QUOTE):
        return tuple(row)
    try:
        results = results_to(results_of(column, row[TIME]))
    except (msgspec.DecodeError, UnicodeError):
        results = column
    return *row[:RESULTS], results, *row[RESULTS + 1 :]


def added_event(new: NewEvent, id_: int, now: float, due: float) -> Event:
    """Return a new event as the store has just stored it."""
    return Event(
        id=id_,
        event_id=new.event_id,
        bus=new.bus,
        type=new.type,
        payload_json=new.payload_json,
        metadata_json=new.metadata_json,
        tags=new.tags,
        priority=new.priority,
        max_attempts=new.max_attempts,
        parent_id=new.parent_id,
        idempotency_key=new.idempotency_key,
        created_ts=now,
        updated_ts=now,
        due_ts=due,
    )


def event_of(row: Row) -> Event:
    """Return an event from the columns ``{event}``."""
    (
        id_, event_id, bus, type_, payload, metadata, tags, priority, max_attempts, parent_id, key, status,
        attempts, generation, fence, worker_id, errors, created, updated, due, picked, started, expires,
    ) = row  # fmt: skip
    # More than 15 keywords make CPython build a dict for the call, which triples its cost: two short calls instead.
    event = Event(
        id=id_,
        event_id=event_id,
        bus=bus,
        type=type_,
        payload_json=payload,
        status=_STATUSES[status],
        attempts=attempts,
        generation=generation,
        fence=fence,
        worker_id=worker_id,
        created_ts=created,
        updated_ts=updated,
        due_ts=due,
        picked_ts=picked,
        expires_ts=expires,
    )
    return replace(
        event,
        metadata_json=metadata,
        tags=() if tags is None else strings_of(tags),
        priority=priority,
        max_attempts=max_attempts,
        parent_id=parent_id,
        idempotency_key=key,
        errors=() if errors is None else strings_of(errors),
        started_ts=started,
    )


def claimed_event(row: Row) -> Event:
    """Return an event that was claimed just now. Columns that are not in the row keep their defaults."""
    (
        id_, event_id, bus, type_, payload, attempts, generation, fence, worker_id, created, due, picked, expires,
    ) = row  # fmt: skip
    return Event(
        id=id_,
        event_id=event_id,
        bus=bus,
        type=type_,
        payload_json=payload,
        status=EventStatus.PROCESSING,
        attempts=attempts,
        generation=generation,
        fence=fence,
        worker_id=worker_id,
        created_ts=created,
        updated_ts=picked,
        due_ts=due,
        picked_ts=picked,
        expires_ts=expires,
    )


def entry_of(row: Row) -> LogEntry:
    """Return a log entry from the columns ``{entry}``."""
    (
        position, action, id_, event_id, bus, type_, status, at, created, attempt, generation, fence, worker_id,
        error, reason, next_retry, time_ms, status_code, tags, metadata, parent_id, payload, errors, results,
    ) = row  # fmt: skip
    return LogEntry(
        position=position,
        action=_ACTIONS[action],
        id=id_,
        event_id=event_id,
        bus=bus,
        type=type_,
        status=_STATUSES[status],
        at_ts=at,
        created_ts=created,
        attempt=attempt,
        generation=generation,
        fence=fence,
        worker_id=worker_id,
        error=error,
        reason=reason,
        next_retry_ts=next_retry,
        execution_time_ms=time_ms,
        status_code=status_code,
        tags=() if tags is None else strings_of(tags),
        metadata_json=metadata,
        parent_id=parent_id,
        payload_json=payload,
        errors=() if errors is None else strings_of(errors),
        results=() if results is None else results_of(results, time_ms),
    )


def entry_to(entry: LogEntry, event: Event, token: str | None) -> Row:
    """Return the row of a log entry. A COMPLETED or CANCELLED entry also holds the other columns of the event."""
    rest: Row = _NOT_THE_EVENT
    if entry.status in HISTORY:
        rest = (
            True, event.priority, event.max_attempts, event.due_ts, event.picked_ts, event.started_ts,
            event.idempotency_key,
        )  # fmt: skip
    return (
        entry.action.value, entry.id, entry.event_id, entry.bus, entry.type, entry.status.value, entry.at_ts,
        entry.created_ts, entry.attempt, entry.generation, entry.fence, entry.worker_id, entry.error, entry.reason,
        entry.next_retry_ts, entry.execution_time_ms, entry.status_code, strings_to(entry.tags), entry.metadata_json,
        entry.parent_id, entry.payload_json, strings_to(entry.errors), results_to(entry.results), token, *rest,
    )  # fmt: skip


def handler_of(row: Row) -> HandlerState:
    """Return a handler's state from the columns ``{result}``."""
    handler_id, status, attempts, error, value, time_ms, fence, worker_id, expires, token, settled_token, lock_key = row
    result = HandlerResult(
        handler_id=handler_id,
        status=_RESULT_STATUSES[status],
        attempts=attempts,
        error=error,
        value_json=value,
        execution_time_ms=time_ms,
        fence=fence,
        worker_id=worker_id,
        expires_ts=expires,
    )
    return HandlerState(result, token, settled_token, lock_key)


def handler_to(id_: int, handler: HandlerState) -> Row:
    """Return the row of a handler's state."""
    result = handler.result
    return (
        id_, result.handler_id, result.status.value, result.attempts, result.error, result.value_json,
        result.execution_time_ms, result.fence, result.worker_id, result.expires_ts, handler.token,
        handler.settled_token, handler.lock_key,
    )  # fmt: skip


def settled_of(row: Row) -> SettledClaim:
    """Return how the newest settlement of an event ended, from the columns of its log entry."""
    id_, token, fence, action, status, next_retry = row
    return SettledClaim(token, fence, _ACTIONS[action], Settled(id_, _STATUSES[status], next_retry))


def lock_of(row: Row) -> LockState:
    """Return a lock from the columns of ``get_lock``."""
    key, fence, worker_id, token, expires = row
    return LockState(key=key, fence=fence, worker_id=worker_id, token=token, expires_ts=expires)


def lock_claim_of(lock: LockState, token: str) -> LockClaim:
    """Return the claim on a lock, for the holder of ``token``."""
    return LockClaim(key=lock.key, worker_id=lock.worker_id, token=token, fence=lock.fence, expires_ts=lock.expires_ts)
