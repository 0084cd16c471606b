"""``durabus.store.processes.Processes``: a process shows its presence by a lock that the system frees when it ends.

The lock is on one byte of the database file, far behind its end: the incarnation names the byte. The lock belongs to an
open file (``file_locks``), so a foreign close does not drop it, a frozen process keeps it, and a forked child does not
inherit it. A look asks the system which of these bytes are locked. It uses SQL only after a process has ended.

A copy of the file has its own locks. What processes hold in the original is free in the copy, because none of them will
ever write there.
"""

from __future__ import annotations

import fcntl

from durabus.clock import Clock, monotonic
from durabus.model.claim import MARK, incarnation_of
from durabus.store.processes import EndedProcesses
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.file_locks import FileLock
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.settlements import expire

LOOK_EVERY = 0.1
LOOK_AT_CLAIMS_EVERY = 5.0
"""Seconds between two looks at all claims: a process may have ended before any other process has seen it."""
_FIRST_BYTE = 1 << 61
_BYTES = 1 << 44
"""An incarnation has eleven hexadecimal digits after its mark."""


def byte_of(incarnation: str) -> int:
    """Return the byte of the database file that the process locks."""
    return _FIRST_BYTE + int(incarnation.removeprefix(MARK), 16)


def locked_bytes(lock: FileLock) -> set[int]:
    """Return the bytes of all processes that live, this one included."""
    found, ranges = set(lock.shown), [(_FIRST_BYTE, _BYTES)]
    while ranges:
        start, length = ranges.pop()
        held = lock.find((start, length)) if length > 0 else None
        if held is not None:  # the system names any lock in the range: look before and behind it
            end = held[0] + held[1]
            found.update(range(held[0], end))
            ranges += [(start, held[0] - start), (end, start + length - end)]
    return found


class SQLiteProcesses(SQLiteCore):
    """Implements ``store.processes.Processes`` on SQLite."""

    def __init__(self, address: SQLiteAddress, clock: Clock | None = None) -> None:
        super().__init__(address, clock)
        self._living: set[int] | None = None
        """The bytes that were locked at the last look; None before the first one."""
        self._look_at_claims = 0.0

    async def show_presence(self, incarnation: str) -> bool:
        self._check_open()
        lock, byte = self._file.presence.database_lock, byte_of(incarnation)
        if lock is None:
            return False
        if byte not in lock.shown:
            lock.set(fcntl.F_RDLCK, (byte, 1))
            lock.shown.add(byte)
        return True

    async def withdraw_presence(self, incarnation: str) -> None:
        """See ``Processes``. If the process still holds claims, the lock stays until the process ends."""
        held = await self._read(lambda tx: tx.all(SQL["events_of_process"], {"incarnation": incarnation, "limit": 1}))
        lock, byte = self._file.presence.database_lock, byte_of(incarnation)
        if not held and lock is not None and byte in lock.shown:
            lock.set(fcntl.F_UNLCK, (byte, 1))
            lock.shown.discard(byte)

    async def ended_processes(self) -> EndedProcesses:
        self._check_open()
        lock = self._file.presence.database_lock
        if lock is None:
            return EndedProcesses([], LOOK_AT_CLAIMS_EVERY)
        before, living = self._living, locked_bytes(lock)
        one_is_gone = before is None or not before <= living
        if not one_is_gone and monotonic() < self._look_at_claims:
            self._living = living
            return EndedProcesses([], LOOK_EVERY)
        names = {name for (name,) in await self._read(lambda tx: _holders(tx, with_locks=one_is_gone))}
        # A process locks its byte before its first claim, so only a second look shows whose claims are left behind.
        living = locked_bytes(lock)
        self._living, self._look_at_claims = living, monotonic() + LOOK_AT_CLAIMS_EVERY
        return EndedProcesses(
            sorted(name for name in names if incarnation_of(name) and byte_of(name) not in living), LOOK_EVERY
        )

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        self._check_open()
        lock = self._file.presence.database_lock
        if lock is not None and byte_of(incarnation) in locked_bytes(lock):
            return 0
        return await self._write(lambda tx: _end(tx, incarnation, max_attempts, limit))


def _holders(tx: Transaction, *, with_locks: bool) -> list[tuple[str]]:
    found = list(tx.all(SQL["processes_with_events"]))
    return found + list(tx.all(SQL["processes_with_locks"], {"now": tx.now})) if with_locks else found


def _end(tx: Transaction, incarnation: str, max_attempts: int | None, limit: int) -> int:
    now = {"incarnation": incarnation, "now": tx.now}
    tx.run(SQL["end_handler_claims_of_process"], now)
    rows = tx.all(SQL["events_of_process"], {"incarnation": incarnation, "limit": max(limit, 0)})
    taken = expire(tx, rows, max_attempts, incarnation)
    tx.run(SQL["end_locks_of_process"], now)
    return taken
