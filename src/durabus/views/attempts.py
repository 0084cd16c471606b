"""The attempts of an event, read from its log: which worker had it, from when to when, and how each ended."""

from __future__ import annotations

import msgspec

from durabus.model.claim import LEASE_EXPIRED, PROCESS_ENDED
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult
from durabus.model.statuses import Action, EventStatus

WIDTH = 1000.0
"""The width of the time axis."""
LEAST = 4.0
"""The least width of a bar, so that a short attempt is visible."""

_OUTCOMES = {
    Action.COMPLETED: "completed",
    Action.COMPLETED_WITH_ERRORS: "completed with errors",
    Action.FAILED: "failed",
    Action.RELEASED: "given back",
    Action.ABANDONED: f"lost: {LEASE_EXPIRED}",
    Action.RESET: "taken away by an administrator",
    Action.CANCELLED: "cancelled",
}


class AttemptShown(msgspec.Struct, kw_only=True):
    """One attempt, from its claim to its end, and its bars on the time axis."""

    number: int
    generation: int
    fence: int
    worker_id: str | None
    waited_from_ts: float
    picked_ts: float
    started_ts: float | None = None
    ended_ts: float | None = None
    outcome: str = "running"
    action: str = ""
    error: str | None = None
    reason: str | None = None
    next_retry_ts: float | None = None
    execution_time_ms: float | None = None
    status_code: int | None = None
    results: tuple[HandlerResult, ...] = ()
    waits_x: float = 0.0
    waits_width: float = 0.0
    runs_x: float = 0.0
    runs_width: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds that the attempt took; None while it runs."""
        return None if self.ended_ts is None else self.ended_ts - self.picked_ts


def attempts_of(event: Event, trail: list[LogEntry], now: float) -> list[AttemptShown]:
    """Return all attempts of all generations, oldest first, with their bars on one time axis."""
    found: list[AttemptShown] = []
    waits_from = event.created_ts
    for entry in trail:
        if entry.action is Action.PICKED:
            found.append(
                AttemptShown(
                    number=entry.attempt,
                    generation=entry.generation,
                    fence=entry.fence,
                    worker_id=entry.worker_id,
                    waited_from_ts=waits_from,
                    picked_ts=entry.at_ts,
                )
            )
        elif entry.action is Action.STARTED and found:
            found[-1].started_ts = entry.at_ts
        elif entry.action in _OUTCOMES:
            waits_from = entry.at_ts
            if found and found[-1].ended_ts is None:
                _end(found[-1], entry)
            elif found and found[-1].action == Action.ABANDONED and found[-1].fence == entry.fence:
                _end(found[-1], entry)
                found[-1].outcome += " late, after its claim was lost"
        else:
            waits_from = entry.at_ts
    _place(found, event, now)
    return found


def _end(attempt: AttemptShown, entry: LogEntry) -> None:
    attempt.ended_ts = entry.at_ts
    attempt.outcome = _OUTCOMES[entry.action]
    if entry.action is Action.ABANDONED and (entry.error or "").startswith(PROCESS_ENDED):
        attempt.outcome = f"lost: {PROCESS_ENDED}"
    attempt.action = entry.action
    attempt.error = entry.error
    attempt.reason = entry.reason
    attempt.next_retry_ts = entry.next_retry_ts
    attempt.execution_time_ms = entry.execution_time_ms
    attempt.status_code = entry.status_code
    attempt.results = entry.results


def _place(attempts: list[AttemptShown], event: Event, now: float) -> None:
    """Set the begin and the width of each bar. The axis runs from the publishing to the end, or to now."""
    if not attempts:
        return
    begin = event.created_ts
    end = now if event.status in {EventStatus.PENDING, EventStatus.PROCESSING} else attempts[-1].ended_ts or now
    scale = WIDTH / max(end - begin, 1e-6)
    for attempt in attempts:
        ended = now if attempt.ended_ts is None else attempt.ended_ts
        attempt.waits_x = (attempt.waited_from_ts - begin) * scale
        attempt.waits_width = max((attempt.picked_ts - attempt.waited_from_ts) * scale, 0.0)
        attempt.runs_width = max((ended - attempt.picked_ts) * scale, LEAST)
        attempt.runs_x = min((attempt.picked_ts - begin) * scale, WIDTH - LEAST)
