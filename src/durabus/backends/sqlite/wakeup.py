"""Who sleeps for work on which bus, and what wakes them. Used by the writer's thread only.

Commits of this store object wake the buses they touched. Commits of others, callers' own connections included, are seen
by ``PRAGMA data_version``, a look of a few microseconds. Where the kernel notices writes (``notice``), a look is taken
after each of them; elsewhere every few milliseconds. Nobody looks while nobody sleeps.
"""

from __future__ import annotations

import sqlite3

from durabus.backends.sqlite.notice import Notice
from durabus.backends.sqlite.operation import Watch, deliver
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.clock import monotonic

LOOK_EVERY = 0.005
"""Seconds between two looks where writes are not noticed."""
LOOKS = (0.0003, 0.0006, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.009, 0.014, 0.02, 0.03, 0.05, 0.1, 0.3, 1.0)
"""Seconds from a noticed write to the looks for its commit: it is seen only after the disk confirmed it."""
_LOOK_ANYWAY = 1.0
_REMEMBERED_BUSES = 10_000

_OUTLOOK = statement("outlook")


class Wakeup:
    """Hints, not promises: a bus forgotten here costs latency, nothing else."""

    def __init__(self, connection: sqlite3.Connection, notice: Notice | None) -> None:
        self._connection = connection
        self._notice = notice
        self._version = self._data_version()
        self._sleepers: dict[str, list[Watch]] = {}
        self._alarms: dict[str, float] = {}
        self._next_look = 0.0
        self._noticed = 0.0
        self._looks_taken = len(LOOKS)
        self._tick = 0
        self._foreign = 0
        self._news: dict[str, int] = {}
        self._fruitless: dict[str, int] = {}

    @property
    def anybody(self) -> bool:
        """Whether somebody sleeps."""
        return bool(self._sleepers)

    def look_again_in(self) -> float:
        """Seconds until the next look or alarm, whichever comes first; 0 if it is overdue."""
        instant = min((self._next_look, *self._alarms.values()))
        return max(instant - monotonic(), 0.0)

    def noticed(self) -> None:
        """Somebody, maybe we ourselves, writes to the log: look for a commit soon, if anybody sleeps."""
        if self._notice is not None and not self._sleepers:
            self._notice.ignore()
        self._noticed = monotonic()
        self._looks_taken = 0
        self._next_look = self._noticed + LOOKS[0]

    def watch(self, watch: Watch, now: float) -> None:
        """Let somebody sleep, unless there is work.

        Work that the last claim did not get (it has other tags, or the lock is held) does not count until something
        new comes: whoever sleeps now would only be told of it again and again.
        """
        bus = watch.bus
        self._begin_to_notice()
        self._see_others(now)
        ready, alarm = self._outlook(bus, now)
        if ready and max(self._news.get(bus, 0), self._foreign) > self._fruitless.get(bus, -1):
            deliver([watch])
            return
        if not self._sleepers:
            self._plan_next_look(monotonic())
        self._sleepers.setdefault(bus, []).append(watch)
        self._set_alarm(bus, alarm)

    def committed(self, tx: Transaction) -> None:
        """After a transaction of our own: wake the buses it made work for."""
        if len(self._news) + len(self._fruitless) > _REMEMBERED_BUSES:
            self._news.clear()
            self._fruitless.clear()
        for bus in tx.fruitless:
            self._fruitless[bus] = self._tick
        for bus in tx.fruitful:
            self._fruitless.pop(bus, None)
        self._tick += 1
        for bus in tx.woken:
            if bus in self._sleepers:
                self._wake(bus)
            else:
                self._news[bus] = self._tick

    def look(self, now: float) -> None:
        """Commits of others, alarms that are due, sleepers that gave up."""
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
        if self._notice is not None and not self._sleepers:
            self._notice.ignore()
        self._plan_next_look(instant)

    def wake_all(self) -> None:
        """The store closes."""
        for bus in list(self._sleepers):
            self._wake(bus)
        if self._notice is not None:
            self._notice.close()

    def _begin_to_notice(self) -> None:
        if self._notice is None or self._notice.watching:
            return
        if self._notice.watch():
            # a write that began before the watch goes unnoticed: look for its commit all the same
            self._noticed, self._looks_taken = monotonic(), 0
        else:
            self._notice.close()
            self._notice = None

    def _plan_next_look(self, instant: float) -> None:
        if self._notice is None:
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
        self._tick += 1
        self._foreign = self._tick
        for bus in list(self._sleepers):
            ready, alarm = self._outlook(bus, now)
            if ready:
                self._wake(bus)
            else:
                self._set_alarm(bus, alarm)

    def _wake(self, bus: str) -> None:
        self._alarms.pop(bus, None)
        deliver(self._sleepers.pop(bus, ()))

    def _set_alarm(self, bus: str, alarm: float | None) -> None:
        if alarm is not None:
            self._alarms[bus] = alarm
        else:
            self._alarms.pop(bus, None)

    def _outlook(self, bus: str, now: float) -> tuple[bool, float | None]:
        """Whether ``bus`` has something to claim, else the local instant at which it will have."""
        ready, due, expires = self._connection.execute(_OUTLOOK, {"bus": bus}).fetchone()
        instants = [instant for instant in (due, expires) if instant is not None]
        return bool(ready), monotonic() + max(min(instants) - now, 0.0) if instants else None

    def _data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version
