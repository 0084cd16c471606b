"""Counts what happened in a history, so that a run can show that it was not a quiet one."""

from __future__ import annotations

from collections import Counter

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


def verbs(history: History) -> Counter[str]:
    """Return how often handlers used each of their verbs, and how many events were cancelled."""
    return Counter(
        {
            "steps computed": sum(step.what == "computed" for step in history.steps),
            "steps remembered": remembered(history),
            "asleep": sum(effect.what == "asleep" for effect in history.effects),
            "waits met": sum(step.what == "waited" and step.value is not None for step in history.steps),
            "waits given up": sum(step.what == "waited" and step.value is None for step in history.steps),
            "verdicts of batches": sum(
                effect.handler in history.settings.batched and effect.what in ("done", "raised")
                for effect in history.effects
            ),
            "cancelled": sum(event.status is EventStatus.CANCELLED for event in history.finals.values()),
        }
    )
