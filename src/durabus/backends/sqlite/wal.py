"""Keeping the write-ahead log small. SQLite writes it back by itself, but never cuts it while somebody reads."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

from durabus.backends.sqlite.connection import wait_for_others
from durabus.backends.sqlite.flock import BUSY_TIMEOUT, WriteLock
from durabus.clock import monotonic

logger = logging.getLogger("durabus.sqlite")

LIMIT = 64 * 1024 * 1024
SHRINK_EVERY = 1.0
_MEASURE_EVERY = 16
"""Commits from one look at the size to the next."""


class WriteAheadLog:
    """Looked after by the writer's thread."""

    def __init__(self, database: Path, lock: WriteLock) -> None:
        self.path = database.with_name(database.name + "-wal")
        self._lock = lock
        self._size = 0
        self._shrunk = 0.0
        self._told = False

    @property
    def too_large(self) -> bool:
        """Whether it should be cut."""
        return self._size > LIMIT

    def committed(self, commits: int) -> None:
        """Look at the size every now and then."""
        if commits % _MEASURE_EVERY == 0:
            self._measure()

    def shrink(self, connection: sqlite3.Connection) -> None:
        """Write the log back into the file and cut it, if nobody reads an old state of it."""
        if monotonic() - self._shrunk < SHRINK_EVERY or not self._lock.try_acquire():
            return
        self._shrunk = monotonic()
        try:
            with contextlib.suppress(sqlite3.Error):
                wait_for_others(connection, 0)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            wait_for_others(connection, BUSY_TIMEOUT)
            self._lock.release()
        self._measure()
        self._tell()

    def _measure(self) -> None:
        with contextlib.suppress(OSError):
            self._size = self.path.stat().st_size

    def _tell(self) -> None:
        """Once for each time it grows: there is no limit to it while the reader stays."""
        if self.too_large and not self._told:
            logger.warning(
                "%s has %d MiB and cannot be cut, because a connection reads an old state: end its transaction",
                self.path,
                self._size // 2**20,
            )
        self._told = self.too_large
