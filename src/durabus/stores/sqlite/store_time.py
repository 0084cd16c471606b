"""The store's clock: the host's clock, except that it never goes back and never stands still.

It promises:

- In one process, time never goes back. If the host's clock is set back, time goes on at the speed of the monotonic
  clock, so that leases still end and retries still become due.
- Over all processes that share the file, no write has an earlier instant than the write before it. Each writer stores
  the latest instant in the lock file, and the next holder of the write lock reads it. So a process that starts after
  the clock was set back continues from there, also after a restart of the host, but not after that file is lost.
- When the host's clock is set forward, time follows at once: leases end early, claims stay fenced. When it is then set
  back again, time stays ahead. To make the store follow the host again, stop every process, delete the lock file and
  reset the events whose lease or retry lies in the future.
- While the host sleeps, time passes as its clock says when it wakes up. If that clock was behind before, the sleep does
  not count: no process ran meanwhile.
- A clock that a test passes in never goes back either. It may stand still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from durabus.clock import Clock, SystemClock, monotonic
from durabus.stores.sqlite.file_locks import WriteLock


class StoreTime:
    """The clock of one store object. Any thread may use it."""

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
