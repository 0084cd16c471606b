"""A circuit breaker for each handler: it stops the calls of a handler that fails, then tries one call again."""

from __future__ import annotations

from enum import StrEnum

from durabus.clock import monotonic
from durabus.model.limits import seconds
from durabus.model.policies import BreakerPolicy

_BUCKETS = 6


class BreakerState(StrEnum):
    """A closed breaker admits every call, an open one none, a half-open one a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens when too many events failed within the window of its policy; after a pause it admits one probe.

    It counts events, not calls: the retries of one event that always fails must not stop a healthy handler.
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
        """The state of the breaker now."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if monotonic() >= self._opened_at + self._open_for else BreakerState.OPEN

    def admit(self) -> float:
        """Return 0 if a call may go through now, otherwise the seconds to wait before asking again."""
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
        """Note that the handler succeeded on ``event``."""
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
        """Note that the handler failed on ``event``."""
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
        """Admit another probe: a cancelled call or an unrecoverable error does not show how healthy the handler is."""
        self._probing = False
