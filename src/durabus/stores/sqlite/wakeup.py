"""Wakes workers that wait for events of a bus.

Commits of this store object wake the buses that they touched. ``PRAGMA data_version`` shows the commits of other
connections, those of callers included; it takes a few microseconds. On Linux, inotify reports a write to the
write-ahead log, and the writer checks for its commit; elsewhere it checks every few milliseconds. It checks only while
a worker waits.

inotify watches the log by name. This module never opens the database file itself: closing a second descriptor of it
would drop SQLite's locks.
"""

from __future__ import annotations

import ctypes
import os
import select
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from durabus.clock import monotonic
from durabus.stores.sqlite.connection import Transaction, Watch, deliver
from durabus.stores.sqlite.layout import SQL
from durabus.stores.wakeups import ENDS, BusNews

TELL_EVERY = 0.004
"""Minimum seconds between two reports: a busy neighbour must not keep this process awake."""
_IN_MODIFY = 0x00000002
_EVENT = struct.Struct("iIII")
_BUFFER = 4096


class FileWatch:
    """A thread that sleeps until a process writes to the file. The first ``watch`` starts it."""

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
        """Whether writes are reported at present."""
        return self._watching >= 0

    def watch(self) -> bool:
        """Begin to report writes. Returns False if the system refuses."""
        self._watching = self._libc.inotify_add_watch(self._inotify, os.fsencode(self._file), _IN_MODIFY)
        if self._thread is None and self._watching >= 0:
            self._thread = threading.Thread(target=self._serve, name="durabus-inotify", daemon=True)
            self._thread.start()
        return self.watching

    def ignore(self) -> None:
        """Report no more writes until the next ``watch``."""
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


def inotify(file: Path, tell: Callable[[], None]) -> FileWatch | None:
    """Return a watch on the file, or None if the system has no inotify: then the writer checks at intervals."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return FileWatch(file, tell)
    except (OSError, AttributeError):  # too many inotify instances of this user, or no such call
        return None


LOOK_EVERY = 0.005
"""Seconds between two checks on systems without inotify."""
LOOKS = (0.0003, 0.0006, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.009, 0.014, 0.02, 0.03, 0.05, 0.1, 0.3, 1.0)
"""Seconds from a reported write to the checks for its commit, which follows once the disk has confirmed it."""
AFTER_OWN = LOOKS.index(0.003)
"""The first check after a report that may be about a commit of this store object. Each such commit checks for others
itself, so the sooner checks would only cost time."""
_LOOK_ANYWAY = 1.0


class SQLiteWakeup:
    """The workers that wait, by bus. Only the writer's thread uses it. A lost wake-up costs latency, nothing else."""

    def __init__(self, connection: sqlite3.Connection, watch: FileWatch | None) -> None:
        self._connection = connection
        self._inotify = watch
        self._version = self._data_version()
        self._handler_news = self._read_handler_news()
        self._sleepers: dict[str, list[Watch]] = {}
        self._alarms: dict[str, float] = {}
        self._next_look = 0.0
        self._noticed = self._committed = 0.0
        self._looks_taken = len(LOOKS)
        self._news = BusNews()
        self._unseen_ends = False
        """Whether events may have ended while no caller waited for that."""

    @property
    def anybody(self) -> bool:
        """Whether any worker waits."""
        return bool(self._sleepers)

    def look_again_in(self) -> float:
        """Return the seconds until the next check or alarm, whichever comes first; 0 if it is overdue."""
        instant = min((self._next_look, *self._alarms.values()))
        return max(instant - monotonic(), 0.0)

    def noticed(self) -> None:
        """A process, maybe this one, writes to the log: plan to check for its commit soon."""
        if self._inotify is not None and not self._sleepers:
            self._inotify.ignore()
        self._noticed = monotonic()
        self._looks_taken = AFTER_OWN if self._noticed - self._committed <= TELL_EVERY else 0
        self._next_look = self._noticed + LOOKS[self._looks_taken]

    def watch(self, watch: Watch, now: float) -> None:
        """Let a worker wait, unless its bus has events to claim.

        Events that the last claim did not get (they have other tags, or the lock is held) do not count until new ones
        come: otherwise they would wake the worker again and again.
        """
        bus = watch.bus
        self._begin_to_watch()
        self._see_others(now)
        ready, alarm = (self._unseen_ends, None) if bus == ENDS else self._next_wakeup(bus, now)
        if ready and (bus == ENDS or self._news.has(bus)):
            self._unseen_ends = self._unseen_ends and bus != ENDS
            deliver([watch])
            return
        if not self._sleepers:
            self._plan_next_look(monotonic())
        self._sleepers.setdefault(bus, []).append(watch)
        self._set_alarm(bus, alarm)

    def committed(self, tx: Transaction) -> None:
        """Wake the workers of the buses that a transaction of this store object gave events to."""
        self._committed, mark = monotonic(), self._news.mark()
        for bus in tx.fruitless:
            self._news.claimed(bus, mark, anything=False)
        for bus in tx.fruitful:
            self._news.claimed(bus, mark, anything=True)
        for bus in tx.woken | tx.added:
            if bus == ENDS:
                self._events_may_have_ended()
            elif bus in self._sleepers:
                self._wake(bus)
            else:
                self._news.add(bus)

    def look(self, now: float) -> None:
        """Check for other commits and due alarms, and remove workers that stopped waiting."""
        self._see_others(now)
        instant = monotonic()
        for bus in [bus for bus, alarm in self._alarms.items() if alarm <= instant]:
            self._wake(bus)
        for bus in list(self._sleepers):
            left = [watch for watch in self._sleepers[bus] if not watch.future.done()]
            if left:
                self._sleepers[bus] = left
            else:
                del self._sleepers[bus]
                self._alarms.pop(bus, None)
        if self._inotify is not None and not self._sleepers:
            self._inotify.ignore()
        self._plan_next_look(instant)

    def wake_all(self) -> None:
        """Wake every worker, because the store closes."""
        for bus in list(self._sleepers):
            self._wake(bus)
        if self._inotify is not None:
            self._inotify.close()

    def _begin_to_watch(self) -> None:
        if self._inotify is None or self._inotify.watching:
            return
        if self._inotify.watch():
            # inotify does not report a write that began before the watch: check for its commit too
            self._noticed, self._looks_taken = monotonic(), 0
        else:
            self._inotify.close()
            self._inotify = None

    def _plan_next_look(self, instant: float) -> None:
        if self._inotify is None:
            self._next_look = instant + LOOK_EVERY
            return
        while self._looks_taken < len(LOOKS) and self._noticed + LOOKS[self._looks_taken] <= instant:
            self._looks_taken += 1
        if self._looks_taken < len(LOOKS):
            self._next_look = self._noticed + LOOKS[self._looks_taken]
        else:
            self._next_look = instant + _LOOK_ANYWAY

    def _see_others(self, now: float) -> None:
        version = self._data_version()
        if version == self._version:
            return
        self._version = version
        self._news.add(None)
        self._events_may_have_ended()
        news, self._handler_news = self._handler_news, self._read_handler_news()
        for bus in list(self._sleepers):
            ready, alarm = self._next_wakeup(bus, now)
            if ready or news != self._handler_news:
                self._wake(bus)
            else:
                self._set_alarm(bus, alarm)

    def _events_may_have_ended(self) -> None:
        """Wake those that wait for the ends of events, or the next one that begins to wait."""
        self._unseen_ends = ENDS not in self._sleepers
        self._wake(ENDS)

    def _wake(self, bus: str) -> None:
        self._alarms.pop(bus, None)
        deliver(self._sleepers.pop(bus, ()))

    def _set_alarm(self, bus: str, alarm: float | None) -> None:
        if alarm is not None:
            self._alarms[bus] = alarm
        else:
            self._alarms.pop(bus, None)

    def _next_wakeup(self, bus: str, now: float) -> tuple[bool, float | None]:
        """Return whether ``bus`` has events to claim, and else the local instant at which it will have."""
        ready, due, expires = self._connection.execute(SQL["next_wakeup"], {"bus": bus}).fetchone()
        instants = [instant for instant in (due, expires) if instant is not None]
        return bool(ready), monotonic() + max(min(instants) - now, 0.0) if instants else None

    def _read_handler_news(self) -> int:
        news: int = self._connection.execute(SQL["handler_news"]).fetchone()[0]
        return news

    def _data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version
