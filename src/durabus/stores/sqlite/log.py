"""``durabus.store.log.Log``: reads and trims the event log, and saves the positions of its readers."""

from __future__ import annotations

from functools import partial
from typing import Any

from durabus.errors import InvalidEventError, LeaseLost
from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogArchives, LogEntry, LogHold, LogPage, LogRows
from durabus.store.events import EventRef
from durabus.store.log import ARCHIVE, START
from durabus.stores.sql.changes import in_parts
from durabus.stores.sql.rows import entry_of, log_row, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.events import archived_until, forget_completed
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.publishing import get_event


class SQLiteLog(SQLiteCore):
    """Implements ``store.log.Log`` on SQLite."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        def read(tx: Transaction) -> LogPage:
            entries = [
                entry_of(row) for row in tx.all(SQL["read_log"], _span(tx, after, until) | {"limit": max(limit, 0)})
            ]
            return LogPage(entries, entries[-1].position if entries else after)

        return await self._read(read)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        def read(tx: Transaction) -> LogRows:
            found = tx.all(SQL["read_log"], _span(tx, after, until) | {"limit": max(limit, 0)})
            rows = [log_row(row) for row in found]
            return LogRows(rows, rows[-1][0] if rows else after)

        return await self._read(read)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        def cut(tx: Transaction) -> list[str]:
            span, ends = _span(tx, after, until) | {"skip": max(rows, 1) - 1}, list[str]()
            while len(ends) < limit:
                end = tx.value(SQL["cut_log"], span)
                if end is None:
                    rest = tx.value(SQL["last_entry"], span)
                    return ends if rest is None else [*ends, str(rest)]
                ends.append(str(end))
                span["after"] = end
            return ends

        return await self._read(cut)

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        """Search without the write lock: an event that has ended or is unknown stays so until it is deleted."""
        self._check_open()

        def look(tx: Transaction) -> tuple[dict[str, Any], list[int], list[int]]:
            last = min(_number(until, _last(tx)), archived_until(tx, ignoring=ignoring))
            bounds = {"until": last, "before": self._now() - older_than, "limit": max(limit, 0)}
            ended = [row[0] for row in tx.all(SQL["completed_until"], bounds)]
            return bounds, ended, [row[0] for row in tx.all(SQL["unknown_until"], bounds)]

        bounds, ended, unknown = await self._read(look)
        gone = 0
        for part in in_parts(ended):
            gone += (await self._write(partial(forget_completed, ids=part, ignoring=ignoring)))[1]
        for part in in_parts(unknown):
            gone += await self._write(
                partial(_forget_unknown, bounds=bounds | {"ids": to_json(part)}, ignoring=ignoring)
            )
        return gone

    async def log_head(self) -> str:
        head = await self._read(lambda tx: tx.value(SQL["log_head"]))
        return START if head is None else str(head)

    async def log_lag(self, after: str) -> int:
        return await self._read(lambda tx: int(tx.value(SQL["log_lag"], (_number(after, _last(tx)),))))

    async def log_hold(self) -> LogHold | None:
        self._check_open()
        return None

    async def make_log_partitions(self) -> int:
        self._check_open()
        return 0

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        def read(tx: Transaction) -> list[LogEntry]:
            event = get_event(tx, ref)
            return (
                []
                if event is None
                else [
                    entry_of(row) for row in tx.all(SQL["read_event_log"], {"id": event.id, "event_id": event.event_id})
                ]
            )

        return await self._read(read)

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        def save(tx: Transaction) -> None:
            held = tx.one(SQL["get_lock"], (lock.key,))
            if held is None or held[3] != lock.token or held[1] != lock.fence:
                raise LeaseLost(lock.key, "the lock is not held by this claim")
            if position is None:
                tx.run(SQL["forget_position"], (name,))
                return
            if name.startswith(ARCHIVE):
                _number(position, _last(tx))
            tx.run(SQL["save_position"], {"name": name, "position": position, "now": tx.now})

        await self._write(save)

    async def read_position(self, name: str) -> str:
        position = await self._read(lambda tx: tx.value(SQL["read_position"], (name,)))
        return START if position is None else str(position)

    async def read_archives(self) -> LogArchives:
        def read(tx: Transaction) -> LogArchives:
            positions = {str(row[0]): str(row[1]) for row in tx.all(SQL["list_archives"])}
            return LogArchives(positions=positions, trimmed=tx.value(SQL["log_lag"], (0,)) < _last(tx))

        return await self._read(read)


def _span(tx: Transaction, after: str, until: str | None) -> dict[str, int]:
    last = _last(tx)
    return {"after": _number(after, last), "until": last if until is None else _number(until, last)}


def _forget_unknown(tx: Transaction, bounds: dict[str, Any], *, ignoring: str) -> int:
    until = min(bounds["until"], archived_until(tx, ignoring=ignoring))
    return tx.run(SQL["forget_unknown_entries"], bounds | {"until": until})


def _last(tx: Transaction) -> int:
    return int(tx.value(SQL["last_position"]))


def _number(position: str, last: int) -> int:
    if position == START:
        return 0
    if not (position.isascii() and position.isdigit()) or int(position) > last:
        raise InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
    return int(position)
