"""Clocks as values that callers pass in. Only this module reads the clocks of the machine."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since 1970 in UTC. A store judges every lease by its own clock only."""

    def now(self) -> float:
        """Return the present time."""
        ...


class SystemClock:
    """The host's wall clock."""

    def now(self) -> float:
        """Return the present time."""
        return time.time()


class ManualClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the present time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds


monotonic = time.monotonic
"""A local clock that never jumps: for deadlines and durations inside one process. Its values are never stored."""

perf_counter = time.perf_counter
"""The local clock with the finest resolution: it measures how long a handler ran."""


def milliseconds_since(started: float) -> float:
    """Return the milliseconds since an instant of ``perf_counter``, in whole microseconds."""
    return int((perf_counter() - started) * 1_000_000) / 1000  # round(…, 3) would take five times as long
