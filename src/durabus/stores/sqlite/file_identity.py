"""Where file systems are mounted, as far as the system tells (Linux)."""

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
"""Blanks and backslashes in a path, as the kernel writes them."""


def file_system(path: Path) -> str:
    """The type of the file system that a path is on; empty where the system does not say."""
    best, kind = "", ""
    for place, type_ in _mounts():
        if len(place) >= len(best) and path.is_relative_to(place):
            best, kind = place, type_
    return kind


def is_mounted_alone(path: Path) -> bool:
    """Whether a file is a mount of its own, as ``docker run -v /data/bus.db:/app/bus.db`` makes it."""
    return any(place == str(path) for place, _ in _mounts())


def _mounts() -> Iterator[tuple[str, str]]:
    if not MOUNTS.exists():
        return
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4]), after.split(" ")[0]


def refuse_second_name(path: Path) -> None:
    """Refuse a file that has two names, or is in two places: SQLite keeps a write-ahead log for each name."""
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
    """Of a database file and its write-ahead log, taken when both are open."""

    def __init__(self, path: Path) -> None:
        self._file = _File(str(path))
        self._log = _File(f"{path}-wal")

    def check(self) -> None:
        """Refuse to go on with files that nobody else can find: what is written there is lost."""
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
        """The same after a commit and before anybody is told of it: the log may have gone in between."""
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
        """What happened to it; empty if nothing did."""
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
    """Whether nothing lies beside the file. Opening a store changes that."""
    return path.exists() and not any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", LOCK_SUFFIX))


def is_from_open_store(path: Path) -> bool:
    """Whether the file is one of durabus, in the mode in which a store that is open has a ``-wal``."""
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
