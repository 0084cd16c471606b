"""A lock that says "this process has the file open", and that nobody drops by accident.

SQLite says so by POSIX locks, and POSIX takes all of them from a process as soon as it closes *any* descriptor of the
file: a backup by ``shutil.copy`` or a checksum is enough. The next connection that closes, in whatever process, then
believes that it is the last one and deletes the write-ahead log that the first process still writes to.

So a store also locks the very bytes that SQLite asks for, by locks that belong to one open file and not to the process
(open file description locks, Linux). Every SQLite connection respects them, not only those of durabus: while a store is
open, nobody deletes ``-wal`` or ``-shm``, and nobody takes ``-shm`` for a leftover and empties it.

Where a system lacks such locks, a store never deletes the log as it closes (from Python 3.12 on), and a store whose log
was deleted by others refuses to work (``identity``): it confirms nothing that would be lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from collections import Counter
from pathlib import Path

from durabus.errors import StoreUnavailableError

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
