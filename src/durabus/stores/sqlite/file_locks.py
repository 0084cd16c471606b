"""Locks on files, and the clock: the write lock between processes keeps the latest instant; other locks show that a
process has the store open.

``WriteLock`` locks a side file, because SQLite's own lock lets one process starve the others. A process holds it for
every write and every checkpoint. In SQLite before 3.51.3, a checkpoint that meets a commit which restarts the
write-ahead log corrupts the file; the write lock keeps the two apart.

The operating system frees the lock when its holder ends, however it ends. There is one lock for one file on one host:
symbolic links and relative paths lead to the same side file. On a network file system the lock promises nothing
between hosts. If the side file is deleted, the next process that takes the lock makes a new one.

``Presence`` shows that a process has the store open. SQLite uses POSIX locks for that, and a process loses all of them
when it closes *any* descriptor of the file: ``shutil.copy`` or a checksum is enough. The next connection that closes,
in any process, then takes itself for the last one and deletes the write-ahead log that is still in use.
So a store also locks the same bytes with locks that belong to an open file instead of the process (open file
description locks, Linux). Every SQLite connection respects them: while a store is open, no program deletes ``-wal`` or
``-shm`` or empties ``-shm``. On a system without such locks, a store never deletes the log as it closes (Python 3.12
and newer), and raises if another program deleted it (``file_identity``).
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
from collections.abc import Callable
from pathlib import Path

from durabus.clock import Clock, SystemClock, monotonic
from durabus.errors import StoreUnavailableError

BUSY_TIMEOUT = 30.0
"""Maximum seconds that a call waits for a lock: the write lock or SQLite's own."""
LOCK_SUFFIX = "-durabus.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""No symbolic links: one in place of the lock may lead to another user's file, which root would change."""
_TRY_EVERY = 0.001
_WIDTH = 24
"""Number of characters that the instant takes in the file."""


class WriteLock:
    """The write lock of one store object. Its file also holds the latest instant that was written under the lock."""

    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self.path = database.with_name(database.name + LOCK_SUFFIX)
        self._name = str(self.path)
        self._descriptor = -1
        self._identity = (0, 0)

    def open(self) -> None:
        """Open the side file, and make it if it does not exist."""
        try:
            self._descriptor = os.open(self.path, _FLAGS, 0o666)
        except OSError as error:
            raise StoreUnavailableError(
                f"{self.path}: cannot be opened ({error.strerror}): "
                "it and the folder of the database must exist and be writable for this user"
            ) from error
        file = os.fstat(self._descriptor)
        self._identity = (file.st_dev, file.st_ino)
        with contextlib.suppress(FileNotFoundError, PermissionError):  # no database yet, or another user owns the file
            self._share(file)

    def _share(self, file: os.stat_result) -> None:
        """Give every user that may write to the database the right to take the lock, as SQLite does with ``-wal``.

        Root may have made the file for another owner, and the umask may exclude a group that shares the database.
        """
        database = os.stat(self._database)  # noqa: PTH116  (as below)
        rights = file.st_mode | (database.st_mode & 0o666)
        if rights != file.st_mode and file.st_nlink == 1:
            os.fchmod(self._descriptor, rights & 0o777)
        if file.st_uid == os.geteuid() == 0 and not file.st_size:  # root has just made it
            os.fchown(self._descriptor, database.st_uid, database.st_gid)

    def close(self) -> None:
        """Close the side file. A forked child does so too: its copy would keep the lock of a killed parent alive."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def try_acquire(self) -> bool:
        """Take the lock if it is free, and return whether it was."""
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def acquire(self) -> None:
        """Wait in the operating system until the lock is free. Nothing can interrupt this: see ``WriteLockWait``."""
        self._take(fcntl.LOCK_EX)

    def acquire_within(self, seconds: float, given_up: threading.Event) -> bool:
        """Try until the time is over or ``given_up`` is set. For rare calls: processes that wait get the lock first."""
        deadline = monotonic() + seconds
        while not self.try_acquire():
            if monotonic() >= deadline or given_up.wait(_TRY_EVERY):
                return False
        return True

    def release(self) -> None:
        """Free the lock for the next process."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def latest(self) -> float:
        """Return the latest instant that any process wrote; 0 if there is none, or if a power cut damaged it."""
        try:
            instant = float(os.pread(self._descriptor, _WIDTH, 0))
        except ValueError:
            return 0.0
        return instant if math.isfinite(instant) else 0.0

    def remember(self, instant: float) -> None:
        """Write an instant for the next process that takes the lock."""
        os.pwrite(self._descriptor, f"{instant!r:<{_WIDTH}}\n".encode(), 0)

    def refusal(self) -> StoreUnavailableError:
        """Return the error for calls that waited in vain."""
        return StoreUnavailableError(
            f"{self.path}: {self._holder()} holds this lock for more than {BUSY_TIMEOUT:g} s, no other can write: "
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
        """Return whether the path still leads to this file. If it was deleted, other processes lock another one."""
        try:
            file = os.stat(self._name)  # noqa: PTH116  (in every transaction: half the cost of Path.stat)
        except FileNotFoundError:
            return False
        return (file.st_dev, file.st_ino) == self._identity

    def _holder(self) -> str:
        """Return which process holds the lock and whether it is stopped, as far as Linux lists it."""
        try:
            file = self.path.stat()
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return "another process"
        file_id = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in locks:
            _, kind, _, _, process, where, *_ = line.split()
            if kind == "FLOCK" and where == file_id:
                return f"process {process}{_condition(process)}"
        return "another process"


def _condition(process: str) -> str:
    if process == str(os.getpid()):
        return " (this one, by another store or file handle)"
    try:
        about = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return " (which has ended: a child that it forked has it)"
    state = about.rpartition(")")[2].split()[0]  # follows the program's name
    return " (which is stopped)" if state in "Tt" else ""


ByteRange = tuple[int, int]
"""First byte and length of a range of a file."""
Key = tuple[int, int]
"""Device and inode of a file."""

SHARED_BYTES: ByteRange = (0x40000002, 510)
"""The bytes of the database file that every connection locks as long as it is open."""
_ATTACHED_BYTE: ByteRange = (128, 1)
"""The byte of ``-shm`` that every process which uses it locks. A process that can lock it alone empties the file."""
_LOCKED = {"": SHARED_BYTES, "-shm": _ATTACHED_BYTE}
_FLOCK = "hhqqi"
"""``struct flock``: type, whence, start, length, and a process id that must be 0."""
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform.startswith("linux") else None
_DESCRIPTORS = "/proc/self/fd"


class FileLock:
    """A lock on one file, shared by all stores of this process that have it open."""

    def __init__(self, descriptor: int, byte_range: ByteRange) -> None:
        self._descriptor = descriptor
        self._byte_range = byte_range
        self.users = 0
        self.shown: set[int] = set()
        """Bytes that show that processes live: see ``processes``."""

    def set(self, kind: int, byte_range: ByteRange | None = None) -> None:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, *(byte_range or self._byte_range), 0)
        fcntl.fcntl(self._descriptor, _SET_LOCK or 0, request)

    def find(self, byte_range: ByteRange) -> ByteRange | None:
        """Return a lock of another process inside the range, or None if there is none."""
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, *byte_range, 0)
        kind, _, start, length, _ = struct.unpack(_FLOCK, fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, request))
        return None if kind == fcntl.F_UNLCK else (start, length)

    @property
    def is_needed(self) -> bool:
        """Whether a store uses the lock, or a byte shows a process to others. No process opens a deleted file."""
        return self.users > 0 or (bool(self.shown) and os.fstat(self._descriptor).st_nlink > 0)

    def close(self) -> None:
        os.close(self._descriptor)


_gate = threading.Lock()
_locks: dict[Key, FileLock] = {}


def supported() -> bool:
    """Return whether this system has locks that belong to an open file instead of a process."""
    return _SET_LOCK is not None


class Presence:
    """Shows that one store object has the file open. Its caller holds the write lock if it can be had."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._taken: list[FileLock] = []

    def take(self) -> None:
        """Take the locks. The connections are open, so both files exist."""
        if not supported():
            return
        with _gate:
            try:
                for suffix, byte_range in _LOCKED.items():
                    self._take(f"{self._database}{suffix}", byte_range)
                self._refuse_stale_memory()
            except FileNotFoundError as error:
                raise self._stale_memory() from error
            except OSError as error:
                if error.errno == errno.EINVAL:  # this Linux has no such locks: see the module
                    return
                raise StoreUnavailableError(
                    f"{self._database}: cannot be locked ({error.strerror}): put it on a local disk; if another "
                    "program just closes it, open it again"
                ) from error

    def release(self) -> None:
        """Free the locks before the connections close: the last one deletes the log only if no process is present."""
        with _gate:
            while self._taken:
                lock = self._taken.pop()
                lock.users -= 1
                if not lock.users:
                    lock.set(fcntl.F_UNLCK)

    @property
    def database_lock(self) -> FileLock | None:
        """The lock on the database file; None if this system has no such locks."""
        return self._taken[0] if self._taken else None

    @staticmethod
    def tidy() -> None:
        """Close the files that are no longer locked. The connections are closed by then."""
        with _gate:
            _close_unused()

    def _take(self, name: str, byte_range: ByteRange) -> None:
        key = _key(os.stat(name))  # noqa: PTH116  (the name has a suffix)
        lock = _locks.get(key)
        if lock is None:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            lock = _locks[_key(os.fstat(descriptor))] = FileLock(descriptor, byte_range)
        if not lock.users:
            lock.set(fcntl.F_RDLCK)
        lock.users += 1
        self._taken.append(lock)

    def _refuse_stale_memory(self) -> None:
        """Raise if SQLite uses a deleted ``-shm`` in this process while other processes use a new one.

        SQLite keeps one ``-shm`` for each file and process. A forked child inherits that of its parent, which may have
        closed and deleted it since.
        """
        if _opened()[_key(os.stat(f"{self._database}-shm"))] == 1:  # noqa: PTH116  (only the lock has it open)
            raise self._stale_memory()

    def _stale_memory(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._database}-shm was deleted while this process, or the one it was forked from, had the file open, "
            "so writing here would damage it: close every connection to it, or open it in a new process "
            "(multiprocessing: spawn instead of fork). Nothing was written"
        )


def _close_unused() -> None:
    """Close files without a user. Closing a descriptor drops this process's POSIX locks, so others stay open."""
    unused = [key for key, lock in _locks.items() if not lock.is_needed]
    if not unused:
        return
    opened = _opened()
    for key in unused:
        if opened[key] == 1:
            _locks.pop(key).close()


def _opened() -> Counter[Key]:
    """Return how many descriptors of each file this process has; none if the system has no ``/proc``."""
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
    """Close inherited locks in a forked child: they would keep those of its parent alive."""
    global _gate  # noqa: PLW0603  (another thread of the parent may have held it)
    _gate = threading.Lock()
    for lock in _locks.values():
        lock.close()
    _locks.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class StoreTime:
    """The clock of one store object: the host's clock, except that it never goes back and never stands still.

    Any thread may use it. It promises:

    - In one process, time never goes back. If the host's clock is set back, time goes on at the speed of the monotonic
      clock, so that leases still end and retries still become due.
    - Over all processes that share the file, no write has an earlier instant than the write before it. Each writer
      stores the latest instant in the lock file, and the next holder of the write lock reads it. So a process that
      starts after the clock was set back continues from there, also after a restart of the host, but not after that
      file is lost.
    - When the host's clock is set forward, time follows at once: leases end early, claims stay fenced. When it is then
      set back again, time stays ahead. To make the store follow the host again, stop every process, delete the lock
      file and reset the events whose lease or retry lies in the future.
    - While the host sleeps, time passes as its clock says when it wakes up. If that clock was behind before, the sleep
      does not count: no process ran meanwhile.
    - A clock that a test passes in never goes back either. It may stand still.
    """

    def __init__(self, clock: Clock | None = None, *, elapsed: Callable[[], float] | None = None) -> None:
        self._clock = clock or SystemClock()
        self._elapsed = elapsed or (monotonic if clock is None else _stands_still)
        self._gate = threading.Lock()
        self._anchor = 0.0
        self._anchored_at = self._elapsed()

    def now(self, *, at_least: float = 0.0) -> float:
        """Return the present instant, at least ``at_least``."""
        with self._gate:
            # Read the host's clock first: a pause between the two reads must not put the store's clock ahead.
            now = max(self._clock.now(), at_least)
            passed = self._elapsed()
            expected = self._anchor + (passed - self._anchored_at)
            if now < expected:
                return expected
            self._anchor, self._anchored_at = now, passed
            return now

    def now_of_all(self, lock: WriteLock) -> float:
        """Return the instant of a write and store it for later writers. The caller holds ``lock``."""
        now = self.now(at_least=lock.latest())
        lock.remember(now)
        return now


def _stands_still() -> float:
    return 0.0
