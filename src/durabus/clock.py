"""Time as a value that is passed in: the only module that reads the machine's clocks."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since 1970 in UTC. A store judges every lease by its own clock and no other."""

    def now(self) -> float:
        """The present instant."""
        ...


class SystemClock:
    """The host's wall clock."""

    def now(self) -> float:
        """The present instant."""
        return time.time()


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """The present instant."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self._now += seconds


monotonic = time.monotonic
"""Local time that never jumps: for deadlines and durations inside one process, never stored."""

perf_counter = time.perf_counter
"""Local time of the finest resolution: for measuring how long a handler ran."""
