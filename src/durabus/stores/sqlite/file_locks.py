"""The write lock between processes: a side file, because SQLite's own lock lets one process starve the others.

Every write and every checkpoint of durabus happens while this lock is held. That also keeps a checkpoint and a commit
that starts the write-ahead log anew from ever meeting, which corrupts the file in SQLite before 3.51.3.

The lock is the kernel's, so it ends with the process that holds it, however that ends. It is one lock for one file on
one host: symbolic links and relative paths lead to the same side file. Between hosts, on a network file system, nothing
is promised. If the side file is deleted, the next one to take the lock makes a new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import struct
import sys
import threading
from collections import Counter
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


Place = tuple[int, int]
"""First byte and length of a range of a file."""
Key = tuple[int, int]
"""Device and inode of a file."""

SHARED_BYTES: Place = (0x40000002, 510)
"""Of the database file: every connection locks them for as long as it is open."""
_ATTACHED_BYTE: Place = (128, 1)
"""Of ``-shm``: so does every process that uses it. Whoever can lock it alone empties that file."""
_LOCKED = {"": SHARED_BYTES, "-shm": _ATTACHED_BYTE}
_FLOCK = "hhqqi"
"""``struct flock``: type, whence, start, length, and a process id that must be 0."""
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform.startswith("linux") else None
_DESCRIPTORS = "/proc/self/fd"


class _Lock:
    """On one file, shared by all stores of this process that have it open."""

    def __init__(self, descriptor: int, place: Place) -> None:
        self._descriptor = descriptor
        self._place = place
        self.users = 0

    def set(self, kind: int) -> None:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, *self._place, 0)
        fcntl.fcntl(self._descriptor, _SET_LOCK or 0, request)

    def close(self) -> None:
        os.close(self._descriptor)


_gate = threading.Lock()
_locks: dict[Key, _Lock] = {}


def supported() -> bool:
    """Whether this system has locks that belong to an open file."""
    return _SET_LOCK is not None


class Presence:
    """Of one store object. All calls are made while its write lock is held, as far as it can be had."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._taken: list[_Lock] = []

    def take(self) -> None:
        """Lock. The connections are open: both files exist then."""
        if not supported():
            return
        with _gate:
            try:
                for suffix, place in _LOCKED.items():
                    self._take(f"{self._database}{suffix}", place)
                self._refuse_stale_memory()
            except FileNotFoundError as error:
                raise self._stale_memory() from error
            except OSError as error:
                if error.errno == errno.EINVAL:  # the kernel does not know such locks: see the module
                    return
                raise StoreUnavailableError(
                    f"{self._database}: cannot be locked ({error.strerror}): put it on a local disk; if another "
                    "program just closes it, open it again"
                ) from error

    def release(self) -> None:
        """Unlock, before the connections are closed: the last of them deletes the log only if nobody is present."""
        with _gate:
            while self._taken:
                lock = self._taken.pop()
                lock.users -= 1
                if not lock.users:
                    lock.set(fcntl.F_UNLCK)

    @staticmethod
    def tidy() -> None:
        """Close the files that are no longer locked, after the connections are closed."""
        with _gate:
            _close_unused()

    def _take(self, name: str, place: Place) -> None:
        key = _key(os.stat(name))  # noqa: PTH116  (the name has a suffix)
        lock = _locks.get(key)
        if lock is None:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            lock = _locks[_key(os.fstat(descriptor))] = _Lock(descriptor, place)
        if not lock.users:
            lock.set(fcntl.F_RDLCK)
        lock.users += 1
        self._taken.append(lock)

    def _refuse_stale_memory(self) -> None:
        """Refuse a process in which SQLite goes on with a ``-shm`` that was deleted, beside others with the new one.

        SQLite keeps one for each file and process. A forked child inherits that of its parent, which may have been
        closed and deleted since.
        """
        if _opened()[_key(os.stat(f"{self._database}-shm"))] == 1:  # noqa: PTH116  (only by the lock)
            raise self._stale_memory()

    def _stale_memory(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._database}-shm was deleted while this process, or the one it was forked from, had the file open, "
            "so writing here would damage it: close every connection to it, or open it in a new process "
            "(multiprocessing: spawn instead of fork). Nothing was written"
        )


def _close_unused() -> None:
    """Closing a descriptor drops the POSIX locks of this process, so a file stays open while anybody here uses it."""
    unused = [key for key, lock in _locks.items() if not lock.users]
    if not unused:
        return
    opened = _opened()
    for key in unused:
        if opened[key] == 1:
            _locks.pop(key).close()


def _opened() -> Counter[Key]:
    """The descriptors that this process has of each file; none where the system does not tell (no ``/proc``)."""
    opened = Counter[Key]()
    try:
        names = os.listdir(_DESCRIPTORS)  # noqa: PTH208  (names are enough)
    except FileNotFoundError:
        return opened
    for name in names:
        try:
            opened[_key(os.fstat(int(name)))] += 1
        except OSError:  # closed meanwhile
            continue
    return opened


def _key(file: os.stat_result) -> Key:
    return file.st_dev, file.st_ino


def _forget_in_child() -> None:
    """A forked child would keep the locks of its parent alive. It has no connections that closing could harm."""
    global _gate  # noqa: PLW0603  (another thread of the parent may have held it)
    _gate = threading.Lock()
    for lock in _locks.values():
        lock.close()
    _locks.clear()


os.register_at_fork(after_in_child=_forget_in_child)
