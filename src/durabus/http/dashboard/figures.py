"""Figures over time: what happened in each few seconds, kept apart by tags so that everybody sees only their own."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

SLOT = 5.0
"""Seconds that one slot covers."""
KEPT = 3600.0
MAX_TAG_SETS = 200
"""Different sets of tags in one slot; what comes beyond is counted for those who may see everything."""
GROWTH = 1.1
"""Each step of a histogram is a tenth larger than the one before: a percentile is right within 5 %."""
FLOOR = 1e-4

Tags = tuple[str, ...]
REST: Tags = ("",)
"""Where the sets beyond the limit are counted: no tag is empty, so nobody's own."""


class Figures:
    """What happened in some stretch of time."""

    def __init__(self) -> None:
        self.published = 0
        self.completed = 0
        self.dead = 0
        self.failed_attempts = 0
        """Attempts that failed or were lost, those that ended the event included."""
        self.waiting: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        self.whole: Counter[int] = Counter()

    @property
    def attempts(self) -> int:
        """Attempts that came to an end."""
        return self.completed + self.failed_attempts

    @property
    def failure_share(self) -> float | None:
        """Failed of all attempts; None if there were none."""
        return self.failed_attempts / self.attempts if self.attempts else None

    def add(self, other: Figures) -> None:
        """Count what ``other`` counted."""
        self.published += other.published
        self.completed += other.completed
        self.dead += other.dead
        self.failed_attempts += other.failed_attempts
        self.waiting.update(other.waiting)
        self.running.update(other.running)
        self.whole.update(other.whole)


class Percentiles(msgspec.Struct, frozen=True):
    """Of durations, in seconds."""

    p50: float | None
    p95: float | None
    p99: float | None


def step_of(seconds: float) -> int:
    """Where a duration belongs in a histogram."""
    return round(math.log(max(seconds, FLOOR) / FLOOR, GROWTH))


def percentiles(histogram: Counter[int]) -> Percentiles:
    """None where nothing was measured."""
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


class SlotFigures:
    """The last hour, in slots of a few seconds."""

    def __init__(self) -> None:
        self._slots: defaultdict[int, dict[Tags, Figures]] = defaultdict(dict)

    def at(self, instant: float, tags: Tags) -> Figures:
        """Where to count what happened at ``instant`` to an event with these tags."""
        slot = self._slots[int(instant // SLOT)]
        if tags not in slot and len(slot) >= MAX_TAG_SETS:
            tags = REST
        return slot.setdefault(tags, Figures())

    def forget(self, now: float) -> None:
        """What is older than an hour."""
        oldest = int((now - KEPT) // SLOT)
        for number in [number for number in self._slots if number < oldest]:
            del self._slots[number]

    def between(self, begin: float, end: float, seen: frozenset[str]) -> Figures:
        """The sum from ``begin`` up to ``end``, of events with one of the tags ``seen``; empty: of all."""
        total = Figures()
        for number in range(int(begin // SLOT), int(end // SLOT)):
            for tags, figures in self._slots.get(number, {}).items():
                if not seen or not seen.isdisjoint(tags):
                    total.add(figures)
        return total

    def series(self, begin: float, step: float, count: int, seen: frozenset[str]) -> list[Figures]:
        """``count`` sums of ``step`` seconds each, from ``begin`` on."""
        return [self.between(begin + step * n, begin + step * (n + 1), seen) for n in range(count)]


def whole(series: Iterable[Figures]) -> Figures:
    """The sum of a series."""
    total = Figures()
    for figures in series:
        total.add(figures)
    return total
