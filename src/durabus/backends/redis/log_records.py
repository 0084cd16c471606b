"""Log entries from what the functions answer: a transition each, joined with what never changes of its event."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from durabus.backends.redis.records import CREATED, Handler, Said, decode_said, given
from durabus.errors import SchemaError
from durabus.model.log_entry import LOG_COLUMNS, LogEntry
from durabus.model.statuses import TERMINAL, Action, EventStatus


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A transition, as the stream holds it."""

    action: Action
    status: EventStatus
    at: float
    attempt: int
    generation: int
    fence: int
    worker_id: str | bool
    error: str | bool = False
    next_retry: float | bool = False
    execution_time_ms: float | bool = False
    status_code: int | bool = False
    errors: tuple[str, ...] | bool = False
    results: tuple[Handler, ...] | bool = False
    reason: str | bool = False


_entry = msgspec.msgpack.Decoder(Entry).decode
_encode_json = msgspec.json.Encoder().encode


class LogReader:
    """Joins transitions with what never changes of their events, which comes with the first of each."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records
        self._known: dict[bytes, tuple[float, Said]] = {}

    def entries(self) -> list[LogEntry]:
        """As values. Raises ``SchemaError`` for one that does not decode."""
        return [self._value(*self._joined(place)) for place in range(0, len(self._records), 4)]

    def rows(self) -> list[tuple[Any, ...]]:
        """As tuples in the order of ``LOG_COLUMNS``; one that does not decode says what its records hold."""
        rows = []
        for place in range(0, len(self._records), 4):
            try:
                rows.append(self._row(*self._joined(place)))
            except SchemaError:
                rows.append(_damaged_row(*self._records[place : place + 4]))
        return rows

    def _joined(self, place: int) -> tuple[str, int, Entry, float, Said]:
        position, id_, record, data = self._records[place : place + 4]
        try:
            if data:
                created = CREATED.unpack_from(data)[0]
                self._known[id_] = created, decode_said(memoryview(data)[CREATED.size :])
            return position.decode(), int(id_), _entry(record), *self._known[id_]
        except (msgspec.MsgspecError, UnicodeError, KeyError, struct.error) as error:
            raise SchemaError(
                f"the log entry at position {position.decode()} does not decode ({error}): somebody wrote over it"
            ) from error

    def _value(self, position: str, id_: int, entry: Entry, created: float, said: Said) -> LogEntry:
        terminal = entry.status in TERMINAL
        whole = terminal or entry.action is Action.PUBLISHED
        return LogEntry(
            position=position,
            action=entry.action,
            id=id_,
            event_id=said.event_id,
            bus=said.bus,
            type=said.type,
            status=entry.status,
            at_ts=entry.at,
            created_ts=created,
            attempt=entry.attempt,
            generation=entry.generation,
            fence=entry.fence,
            worker_id=given(entry.worker_id),
            error=given(entry.error),
            reason=given(entry.reason),
            next_retry_ts=given(entry.next_retry),
            execution_time_ms=given(entry.execution_time_ms),
            status_code=given(entry.status_code),
            tags=(said.tags or ()) if whole else (),
            metadata_json=said.metadata_json if whole else None,
            parent_id=said.parent_id if whole else None,
            payload_json=said.payload_json if terminal else None,
            errors=(given(entry.errors) or ()) if terminal else (),
            results=tuple(one.result() for one in given(entry.results) or ()),
        )

    def _row(self, position: str, id_: int, entry: Entry, created: float, said: Said) -> tuple[Any, ...]:
        terminal = entry.status in TERMINAL
        whole = terminal or entry.action is Action.PUBLISHED
        return (
            position, entry.action.value, id_, said.event_id, said.bus, said.type, entry.status.value, entry.at,
            created, entry.attempt, entry.generation, entry.fence, given(entry.worker_id), given(entry.error),
            given(entry.reason), given(entry.next_retry), given(entry.execution_time_ms), given(entry.status_code),
            _json(said.tags) if whole else None,
            said.metadata_json if whole else None,
            said.parent_id if whole else None,
            said.payload_json if terminal else None,
            _json(given(entry.errors)) if terminal else None,
            _json([one.result() for one in given(entry.results) or ()]),
        )  # fmt: skip


def _damaged_row(position: bytes, id_: bytes, record: bytes, data: bytes) -> tuple[Any, ...]:
    columns: dict[str, Any] = dict.fromkeys(LOG_COLUMNS)
    columns |= {"position": position.decode(), "id": int(id_)}
    columns |= {"results": record.decode(errors="replace"), "payload_json": data.decode(errors="replace")}
    return tuple(columns.values())


def _json(values: Any) -> str | None:
    return _encode_json(values).decode() if values else None
