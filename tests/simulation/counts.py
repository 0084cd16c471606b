"""Counts what happened in a history, so that a run can show that it was not a quiet one."""

from __future__ import annotations

from durabus.model.statuses import EventStatus
from durabus.testing.history.claims import held_claims
from durabus.testing.history.history import History


def refused(history: History) -> int:
    """Return how many stale writes were refused."""
    return sum(
        answer.lost for call in history.of("settle_events", "renew_event_claims") for _, answer in call.answered()
    )


def takeovers(history: History) -> int:
    """Return how many claims ended because their lease was over."""
    return sum(held.taken is not None for held in held_claims(history).values())


def late_settlements(history: History) -> int:
    """Return how many claims were settled after their lease was over."""
    return sum(held.taken is not None and not held.by_expiry for held in held_claims(history).values())


def dead_letters(history: History) -> int:
    """Return how often an event became a dead letter."""
    dead = (EventStatus.FAILED, EventStatus.COMPLETED_WITH_ERRORS)
    return sum(entry.status in dead for entry in history.log)


def remembered(history: History) -> int:
    """Return how many steps returned a value that an earlier claim had kept."""
    computed = {(step.id, step.name, step.fence) for step in history.steps if step.what == "computed"}
    return sum(step.what == "returned" and (step.id, step.name, step.fence) not in computed for step in history.steps)
