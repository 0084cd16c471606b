"""The write lock between processes: a side file, because SQLite's own lock lets one process starve the others.

Every write and every checkpoint of durabus happens while this lock is held. That also keeps a checkpoint and a commit
that starts the write-ahead log anew from ever meeting, which corrupts the file in SQLite before 3.51.3.

The lock is the kernel's, so it ends with the process that holds it, however that ends. It is one lock for one file on
one host: symbolic links and relative paths lead to the same side file. Between hosts, on a network file system, nothing
is promised. If the side file is deleted, the next one to take the lock makes a new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import threading
from pathlib import Path

from durabus.clock import monotonic
from durabus.errors import StoreUnavailableError

BUSY_TIMEOUT = 30.0
"""Seconds that anybody waits for a lock at most: this one, or SQLite's own."""
LOCK_SUFFIX = "-durabus.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""A symbolic link in its place may lead to a file of somebody else, which root would change."""
_TRY_EVERY = 0.001
_WIDTH = 24
"""Characters of the instant in the file."""


class WriteLock:
    """Of one store object; its file also carries the latest instant that was written under it."""

    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self.path = database.with_name(database.name + LOCK_SUFFIX)
        self._name = str(self.path)
        self._descriptor = -1
        self._identity = (0, 0)

    def open(self) -> None:
        """Make the side file if it is not there."""
        try:
            self._descriptor = os.open(self.path, _FLAGS, 0o666)
        except OSError as error:
            raise StoreUnavailableError(
                f"{self.path}: cannot be opened ({error.strerror}): "
                "it and the folder of the database must exist and be writable for this user"
            ) from error
        file = os.fstat(self._descriptor)
        self._identity = (file.st_dev, file.st_ino)
        with contextlib.suppress(FileNotFoundError, PermissionError):  # no database yet, or not ours to change
            self._share(file)

    def _share(self, file: os.stat_result) -> None:
        """Let everybody take the lock who may write to the database, as SQLite does with its ``-wal``.

        Root may have made the file for another owner, and the umask may keep out a group that shares the database.
        """
        database = os.stat(self._database)  # noqa: PTH116  (as below)
        rights = file.st_mode | (database.st_mode & 0o666)
        if rights != file.st_mode and file.st_nlink == 1:
            os.fchmod(self._descriptor, rights & 0o777)
        if file.st_uid == os.geteuid() == 0 and not file.st_size:  # root has just made it
            os.fchown(self._descriptor, database.st_uid, database.st_gid)

    def close(self) -> None:
        """Let go; also in a forked child, whose copy would keep the lock of a killed parent alive."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def acquire(self) -> None:
        """Wait in the kernel, which wakes the waiting as soon as it is free. Cannot be called back: see ``turn``."""
        self._take(fcntl.LOCK_EX)

    def acquire_within(self, seconds: float, given_up: threading.Event) -> bool:
        """Try until the time is over or somebody gives up; for rare calls, because those who try are served last."""
        deadline = monotonic() + seconds
        while not self.try_acquire():
            if monotonic() >= deadline or given_up.wait(_TRY_EVERY):
                return False
        return True

    def release(self) -> None:
        """Give the lock to the next one."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def latest(self) -> float:
        """The latest instant remembered by anybody; 0 if there is none, or if a power cut left something else."""
        try:
            instant = float(os.pread(self._descriptor, _WIDTH, 0))
        except ValueError:
            return 0.0
        return instant if math.isfinite(instant) else 0.0

    def remember(self, instant: float) -> None:
        """Keep an instant for whoever takes the lock next."""
        os.pwrite(self._descriptor, f"{instant!r:<{_WIDTH}}\n".encode(), 0)

    def refusal(self) -> StoreUnavailableError:
        """What to tell those who waited in vain."""
        return StoreUnavailableError(
            f"{self.path}: {self._holder()} holds this lock for more than {BUSY_TIMEOUT:g} s, nobody else can write: "
            "if it is stopped, continue it (kill -CONT) or end it; if not, its disk hangs. Nothing was written"
        )

    def _take(self, way: int) -> bool:
        while True:
            if self._descriptor < 0:
                self.open()
            try:
                fcntl.flock(self._descriptor, way)
            except BlockingIOError:
                return False
            except OSError as error:
                raise StoreUnavailableError(
                    f"{self.path}: cannot be locked ({error.strerror}): put the database on a local disk"
                ) from error
            if self._is_the_file_of_all():
                return True
            self.close()

    def _is_the_file_of_all(self) -> bool:
        """Whether others that open the path find this file. If it was deleted, they lock another one."""
        try:
            file = os.stat(self._name)  # noqa: PTH116  (in every transaction: half the cost of Path.stat)
        except FileNotFoundError:
            return False
        return (file.st_dev, file.st_ino) == self._identity

    def _holder(self) -> str:
        """As far as the system tells: Linux lists its locks, and what their holders do."""
        try:
            file = self.path.stat()
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return "another process"
        place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in locks:
            _, kind, _, _, process, where, *_ = line.split()
            if kind == "FLOCK" and where == place:
                return f"process {process}{_condition(process)}"
        return "another process"


def _condition(process: str) -> str:
    if process == str(os.getpid()):
        return " (this one, by another store or file handle)"
    try:
        about = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return " (which has ended: a child that it forked has it)"
    state = about.rpartition(")")[2].split()[0]  # behind the program's name
    return " (which is stopped)" if state in "Tt" else ""
