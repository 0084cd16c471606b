"""``durabus.store.log.Log``."""

from __future__ import annotations

from typing import Any

from durabus.backends.redis.core import RedisCore
from durabus.backends.redis.events import FORGET_AT_ONCE, LARGEST_ID, known_ref
from durabus.backends.redis.log_records import LogReader
from durabus.errors import InvalidEventError, LeaseLost
from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogEntry, LogHold, LogPage, LogRows
from durabus.store.events import EventRef
from durabus.store.log import START

CUT_AT_ONCE = 20
"""Pieces whose ends one call looks for."""


class RedisLog(RedisCore):
    """The event log and the positions of its readers."""

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

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        _, *records = await self._call("read_event_log", known_ref(ref))
        return LogReader(records).entries()

    async def save_position(self, name: str, position: str, *, lock: LockClaim) -> None:
        if await self._call("save_position", name, position, lock.key, lock.token, lock.fence):
            raise LeaseLost(lock.key, "the lock is not held by this claim")

    async def read_position(self, name: str) -> str:
        position: bytes = await self._call("read_position", name)
        return position.decode()

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000) -> int:
        self._check_open()
        last = _number(until)
        entries = await self._trim("trim_log", until, last, older_than, limit)
        return entries + await self._trim("trim_orphans", until, last, older_than, limit)

    async def _trim(self, verb: str, until: str, last: int, older_than: float, limit: int) -> int:
        events, entries, after = 0, 0, 0
        while events < limit:
            at_once = min(limit - events, FORGET_AT_ONCE)
            answer: list[Any] = await self._call(verb, last, older_than, at_once, after)
            if not answer:
                raise _foreign(until)
            events += answer[0]
            entries += answer[1]
            if answer[2]:
                after = int(answer[2])
            elif answer[0] < at_once:
                break
        return entries

    async def _read_log(self, after: str, until: str | None, limit: int) -> LogReader:
        self._check_open()
        last = None if until is None else _number(until)
        ours, *records = await self._call("read_log", _number(after), last, limit)
        if not ours:
            raise _foreign(after if until is None else f"{after} or {until}")
        return LogReader(records)


def _number(position: str) -> int:
    if position == START:
        return 0
    if not (position.isascii() and position.isdigit()) or int(position) >= LARGEST_ID:
        raise _foreign(position)
    return int(position)


def _foreign(position: str) -> InvalidEventError:
    return InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
