"""The store's clock: the host's, but never backwards and never standing still.

What is promised:

- In one process, time never goes back. While the host's clock is behind what was told before (somebody set it back),
  time goes on at the speed of the monotonic clock, so that leases end and retries become due all the same.
- Over all processes that share the file, no write is stamped earlier than the write before it: the latest instant is
  kept in the file of the write lock and read by whoever takes the lock. So a process that starts after the clock was
  set back goes on where the others are. This also holds after a restart of the host, but not after that file is lost.
- When the host's clock is set forward, time follows at once: leases end early, claims stay fenced. When it is then set
  back again, time stays ahead. To make the store follow the host again, stop every process, delete the lock's file and
  reset the events whose lease or retry lies in the future.
- While the host sleeps, time passes as the host's clock says when it wakes up. If that clock was behind before, the
  sleep does not count: nobody worked meanwhile.
- A clock that was handed in (a test's) is only kept from going back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from durabus.clock import Clock, SystemClock, monotonic
from durabus.stores.sqlite.file_locks import WriteLock


class StoreTime:
    """Asked from any thread."""

    def __init__(self, clock: Clock | None = None, *, elapsed: Callable[[], float] | None = None) -> None:
        self._clock = clock or SystemClock()
        self._elapsed = elapsed or (monotonic if clock is None else _stands_still)
        self._gate = threading.Lock()
        self._anchor = 0.0
        self._anchored_at = self._elapsed()

    def now(self, *, at_least: float = 0.0) -> float:
        """The present instant, not before ``at_least``."""
        with self._gate:
            # The host's clock is read first: a pause between the two must not put this one ahead.
            now = max(self._clock.now(), at_least)
            passed = self._elapsed()
            expected = self._anchor + (passed - self._anchored_at)
            if now < expected:
                return expected
            self._anchor, self._anchored_at = now, passed
            return now

    def now_of_all(self, lock: WriteLock) -> float:
        """The present instant for a write; ``lock`` is held. Others that write later are not told an earlier one."""
        now = self.now(at_least=lock.latest())
        lock.remember(now)
        return now


def _stands_still() -> float:
    return 0.0
