"""``durabus.store.log.Log``."""

from __future__ import annotations

from durabus.backends.sqlite.core import SQLiteCore
from durabus.backends.sqlite.publishing import get_event
from durabus.backends.sqlite.rows import entry_of
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.errors import InvalidEventError, LeaseLost
from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogEntry, LogPage
from durabus.store.events import EventRef
from durabus.store.log import START

_READ = statement("read_log")
_READ_EVENT = statement("read_event_log")
_LAST = statement("last_position")
_HEAD = statement("log_head")
_LAG = statement("log_lag")
_SAVE = statement("save_position")
_POSITION = statement("read_position")
_GET_LOCK = statement("get_lock")


class SQLiteLog(SQLiteCore):
    """The event log and the positions of its readers."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        def read(tx: Transaction) -> LogPage:
            last = _last(tx)
            span = {
                "after": _number(after, last),
                "until": last if until is None else _number(until, last),
                "limit": max(limit, 0),
            }
            entries = [entry_of(row) for row in tx.all(_READ, span)]
            return LogPage(entries, entries[-1].position if entries else after)

        return await self._read(read)

    async def log_head(self) -> str:
        head = await self._read(lambda tx: tx.value(_HEAD))
        return START if head is None else str(head)

    async def log_lag(self, after: str) -> int:
        return await self._read(lambda tx: int(tx.value(_LAG, (_number(after, _last(tx)),))))

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        def read(tx: Transaction) -> list[LogEntry]:
            event = get_event(tx, ref)
            return (
                []
                if event is None
                else [entry_of(row) for row in tx.all(_READ_EVENT, {"id": event.id, "event_id": event.event_id})]
            )

        return await self._read(read)

    async def save_position(self, name: str, position: str, *, lock: LockClaim) -> None:
        def save(tx: Transaction) -> None:
            held = tx.one(_GET_LOCK, (lock.key,))
            if held is None or held[3] != lock.token or held[1] != lock.fence:
                raise LeaseLost(lock.key, "the lock is not held by this claim")
            tx.run(_SAVE, {"name": name, "position": position, "now": tx.now})

        await self._write(save)

    async def read_position(self, name: str) -> str:
        position = await self._read(lambda tx: tx.value(_POSITION, (name,)))
        return START if position is None else str(position)


def _last(tx: Transaction) -> int:
    return int(tx.value(_LAST))


def _number(position: str, last: int) -> int:
    if position == START:
        return 0
    if not (position.isascii() and position.isdigit()) or int(position) > last:
        raise InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
    return int(position)
