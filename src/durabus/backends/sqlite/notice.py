"""Noticing that another process writes: on Linux the kernel tells (inotify), elsewhere there is only looking.

What is watched is the write-ahead log, by name. The database file itself is never opened here: closing a second
descriptor of it would drop SQLite's locks.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

TELL_EVERY = 0.004
"""Seconds between two notices at most: a busy neighbour must not keep this process awake."""
_IN_MODIFY = 0x00000002
_EVENT = struct.Struct("iIII")
_BUFFER = 4096


class Notice:
    """A thread that sleeps until the file is written to. It is started by the first ``watch``."""

    def __init__(self, file: Path, tell: Callable[[], None]) -> None:
        self._file = file
        self._tell = tell
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._stop_read, self._stop_write = os.pipe()
        self._watching = -1
        self._thread: threading.Thread | None = None

    @property
    def watching(self) -> bool:
        """Whether writes are noticed at present."""
        return self._watching >= 0

    def watch(self) -> bool:
        """Begin to notice. False if the system refuses."""
        self._watching = self._libc.inotify_add_watch(self._inotify, os.fsencode(self._file), _IN_MODIFY)
        if self._thread is None and self._watching >= 0:
            self._thread = threading.Thread(target=self._serve, name="durabus-notice", daemon=True)
            self._thread.start()
        return self.watching

    def ignore(self) -> None:
        """Sleep through everything."""
        if self.watching:
            self._libc.inotify_rm_watch(self._inotify, self._watching)
            self._watching = -1

    def close(self) -> None:
        """End the thread."""
        os.write(self._stop_write, b"x")
        if self._thread is not None:
            self._thread.join()
        for descriptor in (self._inotify, self._stop_read, self._stop_write):
            os.close(descriptor)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._stop_read in ready:
                return
            if self._modified():
                self._tell()
                time.sleep(TELL_EVERY)

    def _modified(self) -> bool:
        try:
            data = os.read(self._inotify, _BUFFER)
        except BlockingIOError:
            return False
        while data:
            _, mask, _, length = _EVENT.unpack_from(data)
            if mask & _IN_MODIFY:
                return True
            data = data[_EVENT.size + length :]
        return False


def notice(file: Path, tell: Callable[[], None]) -> Notice | None:
    """A notice where the system can give one; None where looking must do."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return Notice(file, tell)
    except (OSError, AttributeError):  # too many inotify instances of this user, or no such call
        return None
