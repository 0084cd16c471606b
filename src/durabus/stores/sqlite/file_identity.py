"""Which file a store has open: its file system, its names, its identity while open, and its write-ahead log."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from durabus.clock import monotonic
from durabus.errors import StoreUnavailableError
from durabus.stores.sqlite.connection import connect_reader, store_error, wait_for_others
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT, LOCK_SUFFIX, WriteLock

MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""Matches blanks and backslashes in a path, as Linux writes them."""


def file_system(path: Path) -> str:
    """Return the type of the file system of a path, or an empty text if the system does not say."""
    best, kind = "", ""
    for place, type_ in _mounts():
        if len(place) >= len(best) and path.is_relative_to(place):
            best, kind = place, type_
    return kind


def is_mounted_alone(path: Path) -> bool:
    """Return whether a file is its own mount, as ``docker run -v /data/bus.db:/app/bus.db`` makes it."""
    return any(place == str(path) for place, _ in _mounts())


def _mounts() -> Iterator[tuple[str, str]]:
    if not MOUNTS.exists():
        return
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4]), after.split(" ")[0]


def refuse_second_name(path: Path) -> None:
    """Refuse a file with two names or two places: SQLite would keep a write-ahead log for each of them."""
    names = path.stat().st_nlink
    if names > 1:
        raise StoreUnavailableError(
            f"{path} has {names} names (hard links): processes that open it under different names would "
            "each use a write-ahead log and a lock of their own and damage it: keep one name, use symbolic links"
        )
    if is_mounted_alone(path):
        raise StoreUnavailableError(
            f"{path} is mounted as a single file, so its write-ahead log and its lock lie in {path.parent}, where "
            "others that have this file do not find them, and may end with a container: mount its folder instead"
        )


class Identity:
    """Device and inode of the open database file and its log. They show when another file takes its name."""

    def __init__(self, path: Path) -> None:
        self._file = _File(str(path))
        self._log = _File(f"{path}-wal")

    def check(self) -> None:
        """Raise if another file took the place of an open one: what is written to the old file is lost."""
        became = self._file.became()
        if became:
            raise StoreUnavailableError(
                f"{self._file.name} was {became} while it was open: close every store on it, put the right file there "
                "together with its -wal, then open it again. Nothing was written"
            )
        became = self._log.became()
        if became:
            raise StoreUnavailableError(f"{self._log_was(became)}. Nothing was written")

    def check_committed(self) -> None:
        """Check the log again after a commit, before its callers get a result: it may have gone in between."""
        became = self._log.became()
        if became:
            raise StoreUnavailableError(f"{self._log_was(became)}, and repeat this call: its outcome is not known")

    def _log_was(self, became: str) -> str:
        return (
            f"{self._log.name} was {became} while it was open, so another program took this file for closed: leave "
            "-wal and -shm alone, copy with `durabus db backup`. Close this store, open it again"
        )


class _File:
    def __init__(self, name: str) -> None:
        self.name = name
        file = os.stat(name)  # noqa: PTH116  (as below)
        self._identity = (file.st_dev, file.st_ino)

    def became(self) -> str:
        """Return what happened to the file, or an empty text if it is the same."""
        try:
            file = os.stat(self.name)  # noqa: PTH116  (in every transaction: half the cost of Path.stat)
        except FileNotFoundError:
            return "removed"
        return "" if (file.st_dev, file.st_ino) == self._identity else "replaced by another file"


ADVICE = (
    "this file was copied without its -wal. If the original was open at that time, its newest events are missing here: "
    "copy a store with `durabus db backup`"
)


def came_alone(path: Path) -> bool:
    """Return whether the file has neither ``-wal`` nor lock file beside it. Opening a store changes that."""
    return path.exists() and not any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", LOCK_SUFFIX))


def is_from_open_store(path: Path) -> bool:
    """Return whether a file without ``-wal`` and lock file is a plain copy of a durabus store.

    The newest commits of an open store are in ``-wal``, so a copy of the database file alone lacks them. The lock file
    stays beside an original for ever, and ``durabus db backup`` makes files that are not in WAL mode. So a file in WAL
    mode that has no other file beside it was copied by other means.
    """
    try:
        with closing(connect_reader(path)) as connection:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    return mode == "wal" and (not names or "durabus_migrations" in names)


logger = logging.getLogger("durabus.sqlite")

LIMIT = 64 * 1024 * 1024
SHRINK_EVERY = 1.0
_MEASURE_EVERY = 16
"""Number of commits between two looks at the size."""


class WriteAheadLog:
    """Keeps the write-ahead log small. SQLite never cuts it while a connection reads, so the writer does it later."""

    def __init__(self, database: Path, lock: WriteLock) -> None:
        self.path = database.with_name(database.name + "-wal")
        self._lock = lock
        self._size = 0
        self._shrunk = 0.0
        self._told = False

    @property
    def too_large(self) -> bool:
        """Whether the writer should cut it."""
        return self._size > LIMIT

    def committed(self, commits: int) -> None:
        """Measure the size after every 16th commit."""
        if commits % _MEASURE_EVERY == 0:
            self._measure()

    def shrink(self, connection: sqlite3.Connection) -> None:
        """Write the log back into the file and cut it, unless a connection still reads an old state of it."""
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
        """Warn once each time the log grows too large: it grows without limit while the reader stays."""
        if self.too_large and not self._told:
            logger.warning(
                "%s has %d MiB and cannot be cut, because a connection reads an old state: end its transaction",
                self.path,
                self._size // 2**20,
            )
        self._told = self.too_large
