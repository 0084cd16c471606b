"""A circuit breaker per handler: stop calling what fails, then ask once whether it is well again."""

from __future__ import annotations

from enum import StrEnum

from durabus.clock import monotonic

WINDOW = 60.0
MINIMUM_SAMPLES = 4
FAILURE_RATIO = 0.5
OPEN_FOR = 30.0
_BUCKET = WINDOW / 6


class BreakerState(StrEnum):
    """Closed lets everything through, open nothing, half-open a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens when more than half of at least 4 events of the last minute failed; after 30 s it lets one probe through.

    A sample is an event, not a call: the retries of one poisoned event must not keep a healthy handler from the others.
    """

    def __init__(self) -> None:
        self._failures: dict[int, float] = {}
        self._successes: dict[int, int] = {}
        self._opened_at: float | None = None
        self._probing = False

    @property
    def state(self) -> BreakerState:
        """Where it stands now."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if monotonic() >= self._opened_at + OPEN_FOR else BreakerState.OPEN

    def admit(self) -> float:
        """0 if a call may go through now, else how many seconds to wait before asking again."""
        if self._opened_at is None:
            return 0.0
        wait = self._opened_at + OPEN_FOR - monotonic()
        if wait > 0:
            return wait
        if self._probing:
            return 1.0
        self._probing = True
        return 0.0

    def succeeded(self, event: int) -> None:
        """The handler did its part on ``event``."""
        if self._opened_at is not None:
            self._opened_at, self._probing = None, False
            self._failures.clear()
            self._successes.clear()
            return
        if self._failures:
            self._failures.pop(event, None)
        bucket = int(monotonic() / _BUCKET)
        self._successes[bucket] = self._successes.get(bucket, 0) + 1
        if len(self._successes) > WINDOW / _BUCKET:
            del self._successes[min(self._successes)]

    def failed(self, event: int) -> None:
        """The handler failed on ``event``."""
        now = monotonic()
        if self._opened_at is not None:
            if self._probing:
                self._opened_at, self._probing = now, False
            return
        self._failures.pop(event, None)
        self._failures[event] = now
        for oldest in list(self._failures):
            if self._failures[oldest] > now - WINDOW:
                break
            del self._failures[oldest]
        first_bucket = int((now - WINDOW) / _BUCKET)
        good = sum(count for bucket, count in self._successes.items() if bucket > first_bucket)
        total = len(self._failures) + good
        if total >= MINIMUM_SAMPLES and len(self._failures) > FAILURE_RATIO * total:
            self._opened_at = now

    def abandoned(self) -> None:
        """The call ended without telling anything (cancelled): another probe may go."""
        self._probing = False
