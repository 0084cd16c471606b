"""Counts of what happened in each few seconds, kept apart by tags, because a token may see only some tags."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

SLOT = 5.0
"""Seconds that one slot covers."""
KEPT = 3600.0
MAX_TAG_SETS = 200
"""Maximum number of tag sets in one slot. Further sets are counted only for tokens that may see all tags."""
GROWTH = 1.1
"""Each step of a histogram is a tenth larger than the one before, so a percentile is accurate to 5 %."""
FLOOR = 1e-4

Tags = tuple[str, ...]
REST: Tags = ("",)
"""Where sets beyond the limit are counted. No tag is empty, so no limited token sees them."""


class ActivityCounts:
    """What happened in a period of time."""

    def __init__(self) -> None:
        self.published = 0
        self.completed = 0
        self.dead = 0
        self.failed_attempts = 0
        """Attempts that failed or were lost, including those that ended their event."""
        self.waiting: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        self.whole: Counter[int] = Counter()

    @property
    def attempts(self) -> int:
        """Attempts that ended."""
        return self.completed + self.failed_attempts

    @property
    def failure_share(self) -> float | None:
        """The share of attempts that failed; None if there were no attempts."""
        return self.failed_attempts / self.attempts if self.attempts else None

    def add(self, other: ActivityCounts) -> None:
        """Add the counts of ``other``."""
        self.published += other.published
        self.completed += other.completed
        self.dead += other.dead
        self.failed_attempts += other.failed_attempts
        self.waiting.update(other.waiting)
        self.running.update(other.running)
        self.whole.update(other.whole)


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of durations, in seconds."""

    p50: float | None
    p95: float | None
    p99: float | None


def step_of(seconds: float) -> int:
    """The step of a histogram to which a duration belongs."""
    return round(math.log(max(seconds, FLOOR) / FLOOR, GROWTH))


def percentiles(histogram: Counter[int]) -> Percentiles:
    """The percentiles of a histogram; None if nothing was measured."""
    return Percentiles(*(_quantile(histogram, share) for share in (0.50, 0.95, 0.99)))


def _quantile(histogram: Counter[int], share: float) -> float | None:
    rest = math.ceil(histogram.total() * share)
    if rest == 0:
        return None
    for step in sorted(histogram):
        rest -= histogram[step]
        if rest <= 0:
            return float(FLOOR * GROWTH**step)
    raise AssertionError("a share of the total is not beyond the total")


class SlotCounts:
    """The last hour, in slots of a few seconds."""

    def __init__(self) -> None:
        self._slots: defaultdict[int, dict[Tags, ActivityCounts]] = defaultdict(dict)

    def at(self, instant: float, tags: Tags) -> ActivityCounts:
        """The counts to add to for an event with these tags at ``instant``."""
        slot = self._slots[int(instant // SLOT)]
        if tags not in slot and len(slot) >= MAX_TAG_SETS:
            tags = REST
        return slot.setdefault(tags, ActivityCounts())

    def forget(self, now: float) -> None:
        """Drop counts that are older than an hour."""
        oldest = int((now - KEPT) // SLOT)
        for number in [number for number in self._slots if number < oldest]:
            del self._slots[number]

    def between(self, begin: float, end: float, seen: frozenset[str]) -> ActivityCounts:
        """The sum from ``begin`` to ``end`` of events with one of the tags ``seen``; of all events if it is empty."""
        total = ActivityCounts()
        for number in range(int(begin // SLOT), int(end // SLOT)):
            for tags, counts in self._slots.get(number, {}).items():
                if not seen or not seen.isdisjoint(tags):
                    total.add(counts)
        return total

    def series(self, begin: float, step: float, count: int, seen: frozenset[str]) -> list[ActivityCounts]:
        """``count`` sums of ``step`` seconds each, from ``begin`` on."""
        return [self.between(begin + step * n, begin + step * (n + 1), seen) for n in range(count)]


def whole(series: Iterable[ActivityCounts]) -> ActivityCounts:
    """The sum of a series."""
    total = ActivityCounts()
    for counts in series:
        total.add(counts)
    return total
