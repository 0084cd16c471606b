"""``durabus.store.log.Log``, and the decoding of log entries.

The functions return a transition for each entry. ``LogRecords`` joins it with the data of its event.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from durabus.errors import InvalidEventError, LeaseLost, SchemaError
from durabus.model.claim import LockClaim
from durabus.model.log_entry import LOG_COLUMNS, LogArchives, LogEntry, LogHold, LogPage, LogRows
from durabus.model.statuses import TERMINAL, Action, EventStatus
from durabus.store.events import EventRef
from durabus.store.log import ARCHIVE, START
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.events import FORGET_AT_ONCE, LARGEST_ID, known_ref
from durabus.stores.redis.records import CREATED, HandlerRecord, Said, decode_said, given


class LogRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A transition as the stream holds it."""

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
    results: tuple[HandlerRecord, ...] | bool = False
    reason: str | bool = False


_entry = msgspec.msgpack.Decoder(LogRecord).decode
_encode_json = msgspec.json.Encoder().encode


class LogRecords:
    """Joins transitions with the data of their events. The data come with the first entry of each event."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records
        self._known: dict[bytes, tuple[float, Said]] = {}

    def entries(self) -> list[LogEntry]:
        """Return the entries as values. Raises ``SchemaError`` for an entry that does not decode."""
        return [self._value(*self._joined(place)) for place in range(0, len(self._records), 4)]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the entries as tuples in the order of ``LOG_COLUMNS``. A damaged entry shows its raw records."""
        rows = []
        for place in range(0, len(self._records), 4):
            try:
                rows.append(self._row(*self._joined(place)))
            except SchemaError:
                rows.append(_damaged_row(*self._records[place : place + 4]))
        return rows

    def _joined(self, place: int) -> tuple[str, int, LogRecord, float, Said]:
        position, id_, record, data = self._records[place : place + 4]
        try:
            if data:
                created = CREATED.unpack_from(data)[0]
                self._known[id_] = created, decode_said(memoryview(data)[CREATED.size :])
            return position.decode(), int(id_), _entry(record), *self._known[id_]
        except (msgspec.MsgspecError, UnicodeError, KeyError, struct.error) as error:
            raise SchemaError(
                f"the log entry at position {position.decode()} does not decode ({error}): another program changed it"
            ) from error

    def _value(self, position: str, id_: int, entry: LogRecord, created: float, said: Said) -> LogEntry:
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

    def _row(self, position: str, id_: int, entry: LogRecord, created: float, said: Said) -> tuple[Any, ...]:
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


CUT_AT_ONCE = 20
"""Maximum number of pieces that one call returns."""


class RedisLog(RedisCore):
    """Implements ``store.log.Log`` on Redis."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        entries = (await self._read_log(after, until, limit)).entries()
        return LogPage(entries, entries[-1].position if entries else after)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        rows = (await self._read_log(after, until, limit)).rows()
        return LogRows(rows, rows[-1][0] if rows else after)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        self._check_open()
        start, last, ends = _number(after), _number(until), list[str]()
        while True:
            at_once = min(max(limit - len(ends), 0), CUT_AT_ONCE)
            ours, go_on, *found = await self._call("cut_log", start, last, max(rows, 1), at_once)
            if not ours:
                raise _foreign(f"{after} or {until}")
            ends += [end.decode() for end in found]
            if not go_on or len(ends) >= limit:
                return ends[: max(limit, 0)]
            start = int(ends[-1])

    async def log_head(self) -> str:
        head: bytes = await self._call("log_head")
        return head.decode()

    async def log_lag(self, after: str) -> int:
        self._check_open()
        lag: int = await self._call("log_lag", _number(after))
        if lag < 0:
            raise _foreign(after)
        return lag

    async def log_hold(self) -> LogHold | None:
        self._check_open()
        return None

    async def make_log_partitions(self) -> int:
        self._check_open()
        return 0

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        _, *records = await self._call("read_event_log", known_ref(ref))
        return LogRecords(records).entries()

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        if position is not None and name.startswith(ARCHIVE):
            await self.log_lag(position)  # raises for a position that this log did not give
        if await self._call("save_position", name, position is not None and position, lock.key, lock.token, lock.fence):
            raise LeaseLost(lock.key, "the lock is not held by this claim")

    async def read_position(self, name: str) -> str:
        position: bytes = await self._call("read_position", name)
        return position.decode()

    async def read_archives(self) -> LogArchives:
        trimmed, *found = await self._call("read_archives")
        texts = [text.decode() for text in found]
        return LogArchives(positions=dict(zip(texts[::2], texts[1::2], strict=True)), trimmed=bool(trimmed))

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        self._check_open()
        entries = await self._trim("trim_log", until, older_than, limit, ignoring=ignoring)
        return entries + await self._trim("trim_deleted", until, older_than, limit, ignoring=ignoring)

    async def _trim(self, verb: str, until: str, older_than: float, limit: int, *, ignoring: str) -> int:
        last = _number(until)
        events, entries, after = 0, 0, 0
        while events < limit:
            at_once = min(limit - events, FORGET_AT_ONCE)
            answer: list[Any] = await self._call(verb, last, older_than, at_once, after, ignoring)
            if not answer:
                raise _foreign(until)
            events += answer[0]
            entries += answer[1]
            if answer[2]:
                after = int(answer[2])
            elif answer[0] < at_once:
                break
        return entries

    async def _read_log(self, after: str, until: str | None, limit: int) -> LogRecords:
        self._check_open()
        last = None if until is None else _number(until)
        ours, *records = await self._call("read_log", _number(after), last, limit)
        if not ours:
            raise _foreign(after if until is None else f"{after} or {until}")
        return LogRecords(records)


def _number(position: str) -> int:
    if position == START:
        return 0
    if not (position.isascii() and position.isdigit()) or int(position) >= LARGEST_ID:
        raise _foreign(position)
    return int(position)


def _foreign(position: str) -> InvalidEventError:
    return InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
