"""Runs all checks on a history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from durabus.testing.history.claims import effects, exclusive, locks, serial, stale_writes, starts
from durabus.testing.history.completeness import cursor, lost, phantom, stuck
from durabus.testing.history.history import History, Line, Violation
from durabus.testing.history.lifecycle import backoff, lifecycle, order
from durabus.testing.history.linear import linearizable
from durabus.testing.history.outcomes import (
    cancelled,
    cancelled_children,
    children,
    expired,
    kept_successes,
    offered_handlers,
    requests,
    results_shown,
    step_values,
    strict_results,
    successes,
)
from durabus.testing.history.presence import incarnations, taken_for_dead
from durabus.testing.history.waits import waits

Check = Callable[[History], Iterator[Violation]]

CHECKS: tuple[Check, ...] = (
    lost,
    stuck,
    phantom,
    lifecycle,
    order,
    serial,
    backoff,
    exclusive,
    stale_writes,
    effects,
    starts,
    locks,
    cursor,
    linearizable,
    kept_successes,
    step_values,
    strict_results,
    successes,
    offered_handlers,
    results_shown,
    children,
    cancelled,
    cancelled_children,
    expired,
    requests,
    waits,
    incarnations,
    taken_for_dead,
)


def check(lines: Iterable[Line]) -> list[Violation]:
    """Return every promise that the history breaks."""
    history = History(lines)
    return [violation for one in CHECKS for violation in one(history)]
