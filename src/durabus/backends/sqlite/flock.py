"""The write lock between processes: a side file, because SQLite's own lock lets one process starve the others.

Every write and every checkpoint of durabus happens while this lock is held. That also keeps a checkpoint and a commit
that starts the write-ahead log anew from ever meeting, which corrupts the file in SQLite before 3.51.3.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class WriteLock:
    """Waits in the kernel, which serves the waiting in the order they came."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + "-durabus.lock")
        self._descriptor = -1

    def open(self) -> None:
        """Make the side file if it is not there."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def close(self) -> None:
        """Let go; also in a forked child, whose copy would keep the lock of a killed parent alive."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock and hold it."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> None:
        """Wait for the lock."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock to the next one."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
