"""A circuit breaker per handler: stop calling what fails, then ask once whether it is well again."""

from __future__ import annotations

from enum import StrEnum

from durabus.clock import monotonic
from durabus.model.limits import seconds
from durabus.model.policies import BreakerPolicy

_BUCKETS = 6


class BreakerState(StrEnum):
    """Closed lets everything through, open nothing, half-open a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens when too many events of the last minute failed by its policy; after a pause it lets one probe through.

    A sample is an event, not a call: the retries of one poisoned event must not keep a healthy handler from the others.
    Without a policy it never opens.
    """

    def __init__(self, policy: BreakerPolicy | None) -> None:
        self._policy = policy
        self._window = 0.0 if policy is None else seconds(policy.window, "window")
        self._open_for = 0.0 if policy is None else seconds(policy.open_for, "open_for")
        self._bucket = self._window / _BUCKETS
        self._failures: dict[int, float] = {}
        self._successes: dict[int, int] = {}
        self._opened_at: float | None = None
        self._probing = False

    @property
    def state(self) -> BreakerState:
        """Where it stands now."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if monotonic() >= self._opened_at + self._open_for else BreakerState.OPEN

    def admit(self) -> float:
        """0 if a call may go through now, else how many seconds to wait before asking again."""
        if self._opened_at is None:
            return 0.0
        wait = self._opened_at + self._open_for - monotonic()
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
        if self._policy is None:
            return
        if self._failures:
            self._failures.pop(event, None)
        bucket = int(monotonic() / self._bucket)
        self._successes[bucket] = self._successes.get(bucket, 0) + 1
        if len(self._successes) > _BUCKETS:
            del self._successes[min(self._successes)]

    def failed(self, event: int) -> None:
        """The handler failed on ``event``."""
        if self._policy is None:
            return
        now = monotonic()
        if self._opened_at is not None:
            if self._probing:
                self._opened_at, self._probing = now, False
            return
        self._failures.pop(event, None)
        self._failures[event] = now
        for oldest in list(self._failures):
            if self._failures[oldest] > now - self._window:
                break
            del self._failures[oldest]
        first_bucket = int((now - self._window) / self._bucket)
        good = sum(count for bucket, count in self._successes.items() if bucket > first_bucket)
        total = len(self._failures) + good
        if total >= self._policy.minimum_samples and len(self._failures) > self._policy.failure_ratio * total:
            self._opened_at = now

    def abandoned(self) -> None:
        """The call did not tell how healthy the handler is (cancelled, unrecoverable error): another probe may go."""
        self._probing = False
