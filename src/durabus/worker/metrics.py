"""Counters of what a bus or manager has done since it was created, by event type."""

from __future__ import annotations

from collections import Counter

import msgspec

from durabus.model.event import Event
from durabus.model.statuses import DEAD_LETTER, EventStatus


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Totals by event type."""

    completed: dict[str, int]
    retries: dict[str, int]
    success_after_retry: dict[str, int]
    dead_letters: dict[str, int]
    lease_lost: dict[str, int]
    unhandled: dict[str, int]
    """Events that no node had a handler for."""


class Metrics:
    """The counters of one process; add those of all processes for a fleet."""

    def __init__(self) -> None:
        self._completed: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._success_after_retry: Counter[str] = Counter()
        self._dead_letters: Counter[str] = Counter()
        self._lease_lost: Counter[str] = Counter()
        self._unhandled: Counter[str] = Counter()

    def settled(self, event: Event, status: EventStatus, *, failed: bool) -> None:
        """Count a settled attempt of ``event``, which is now in ``status``."""
        if status is EventStatus.COMPLETED:
            self._completed[event.type] += 1
            if event.attempts > 1:
                self._success_after_retry[event.type] += 1
        elif status in DEAD_LETTER:
            self._dead_letters[event.type] += 1
        elif failed:
            self._retries[event.type] += 1

    def lost(self, event: Event) -> None:
        """Count a claim on ``event`` that was lost before it was settled."""
        self._lease_lost[event.type] += 1

    def unhandled(self, event: Event) -> None:
        """Count ``event``, which was claimed and has no handler on any node."""
        self._unhandled[event.type] += 1

    def snapshot(self) -> MetricsSnapshot:
        """Return a copy of the counters."""
        return MetricsSnapshot(
            completed=dict(self._completed),
            retries=dict(self._retries),
            success_after_retry=dict(self._success_after_retry),
            dead_letters=dict(self._dead_letters),
            lease_lost=dict(self._lease_lost),
            unhandled=dict(self._unhandled),
        )
