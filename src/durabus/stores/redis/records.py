"""Conversion between records and values. It never decodes a payload, because a damaged one must not stop the queue."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.errors import SchemaError
from durabus.lifecycle.state import NOT_DONE, NOT_YOURS
from durabus.model.claim import LockClaim
from durabus.model.event import Event, NewEvent
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus, ResultStatus

REASONS = {1: NOT_YOURS, 2: NOT_DONE, 3: "no such event"}
"""Why a write was refused, by the codes of ``functions/shared/01_names.lua``."""

CREATED = struct.Struct(">d")
"""The data of an event begin with its creation time."""
_encode = msgspec.msgpack.Encoder().encode


class StateRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of an event that change. ``False`` stands for a missing value."""

    id: int
    status: EventStatus
    attempts: int
    generation: int
    fence: int
    worker_id: str | bool
    token: str | bool | list[Any]
    created: float
    updated: float
    due: float
    picked: float | bool
    started: float | bool
    expires: float | bool
    bus: str
    errors: tuple[str, ...] | bool


class Said(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the publisher gave. It never changes."""

    event_id: str
    bus: str
    type: str
    metadata_json: str | None
    tags: tuple[str, ...] | None
    priority: int
    max_attempts: int | None
    parent_id: str | None
    idempotency_key: str | None
    payload_json: str


class HandlerRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A handler of an event. In the log the record ends with ``expires``, or sooner if the rest has its defaults."""

    handler_id: str
    status: ResultStatus
    attempts: int
    error: str | bool
    value_json: str | bool
    execution_time_ms: float | bool
    fence: int = 0
    worker_id: str | bool = False
    expires: float | bool = False
    token: str | bool = False

    def result(self) -> HandlerResult:
        """Return the result as callers see it."""
        return HandlerResult(
            handler_id=self.handler_id,
            status=self.status,
            attempts=self.attempts,
            error=given(self.error),
            value_json=given(self.value_json),
            execution_time_ms=given(self.execution_time_ms),
            fence=self.fence,
            worker_id=given(self.worker_id),
            expires_ts=given(self.expires),
        )


class LockRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A lock."""

    key: str
    fence: int
    worker_id: str
    token: str | bool
    expires: float

    def claim(self, token: str) -> LockClaim:
        """Return the lock as its holder sees it, or without the token for other callers."""
        return LockClaim(
            key=self.key, worker_id=self.worker_id, token=token, fence=self.fence, expires_ts=float(self.expires)
        )


_state = msgspec.msgpack.Decoder(StateRecord).decode
decode_said = msgspec.msgpack.Decoder(Said).decode
decode_handler = msgspec.msgpack.Decoder(HandlerRecord).decode
decode_lock = msgspec.msgpack.Decoder(LockRecord).decode


def given(value: Any) -> Any:
    """Return the value of a field, or None if the record says that it is missing."""
    return None if value is False else value


def data_of(new: NewEvent) -> bytes:
    """Return the record of data that ``add_events.lua`` takes for each event."""
    return _encode(
        (
            new.event_id, new.bus, new.type, new.metadata_json, new.tags or None, new.priority, new.max_attempts,
            new.parent_id, new.idempotency_key, new.payload_json,
        )
    )  # fmt: skip


def event_of(state: bytes, data: bytes) -> Event:
    """Build an event from its two records."""
    try:
        now, said = _state(state), decode_said(memoryview(data)[CREATED.size :])
    except (msgspec.MsgspecError, UnicodeError, TypeError) as error:
        raise SchemaError(f"a record of an event does not decode ({error}): another program changed it") from error
    # More than 15 keywords make CPython build a dict for the call, which triples its cost. So there are two short
    # calls.
    event = Event(
        id=now.id,
        event_id=said.event_id,
        bus=said.bus,
        type=said.type,
        payload_json=said.payload_json,
        status=now.status,
        attempts=now.attempts,
        fence=now.fence,
        worker_id=given(now.worker_id),
        created_ts=now.created,
        updated_ts=now.updated,
        due_ts=now.due,
        picked_ts=given(now.picked),
        started_ts=given(now.started),
        expires_ts=given(now.expires),
    )
    plain = (
        not now.generation
        and now.errors is False
        and said.tags is None
        and said.metadata_json is None
        and not said.priority
        and said.max_attempts is None
        and said.parent_id is None
        and said.idempotency_key is None
    )
    return event if plain else replace(event, **_rest(now, said))


def _rest(now: StateRecord, said: Said) -> dict[str, Any]:
    return {
        "metadata_json": said.metadata_json,
        "tags": said.tags or (),
        "priority": said.priority,
        "max_attempts": said.max_attempts,
        "parent_id": said.parent_id,
        "idempotency_key": said.idempotency_key,
        "generation": now.generation,
        "errors": now.errors or (),
    }


def events_of(records: list[bytes]) -> list[Event]:
    """Build events from a list of their records, two for each event."""
    return [event_of(state, data) for state, data in zip(records[::2], records[1::2], strict=True)]


def results_of(records: Sequence[bytes]) -> tuple[HandlerResult, ...]:
    """Return the results of an event's handlers."""
    return tuple(decode_handler(record).result() for record in records) if records else ()


def result_to(result: HandlerResult) -> tuple[Any, ...]:
    """Return a result as a settlement carries it."""
    optional = (result.error, result.value_json, result.execution_time_ms)
    error, value, time_ms = (False if one is None else one for one in optional)
    worker_id = False if result.worker_id is None else result.worker_id
    expires = False if result.expires_ts is None else result.expires_ts
    return (
        result.handler_id, result.status.value, result.attempts, error, value, time_ms, result.fence, worker_id,
        expires,
    )  # fmt: skip
