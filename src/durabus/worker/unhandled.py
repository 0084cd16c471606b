"""Events that no node has a handler for: completed, kept or made dead letters, as the bus says."""

from __future__ import annotations

import logging

from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Release, Settlement
from durabus.model.statuses import OnUnhandled
from durabus.worker.metrics import Metrics

logger = logging.getLogger("durabus.worker")

MAX_TOLD = 10_000
"""Types made up at run time must not fill the memory."""

KEPT_FIRST = 1.0
"""Seconds until an event that is kept is claimed again. From then on it waits in place; while too many do, it goes
back once more, and each such wait is twice as long."""
KEPT_DOUBLINGS = 12
KEPT_LONGEST = 3600.0

WHAT_HAPPENS = {
    OnUnhandled.COMPLETE: "it completes without work",
    OnUnhandled.KEEP: "it waits in the queue",
    OnUnhandled.DEAD_LETTER: "it becomes a dead letter",
}


class Unhandled:
    """Settles such events, counts them, and warns once for each type: the type may be misspelt."""

    def __init__(self, choice: OnUnhandled, metrics: Metrics) -> None:
        self._choice = choice
        self._metrics = metrics
        self._told: set[str] = set()

    @property
    def keeps(self) -> bool:
        """Whether such events wait for a handler."""
        return self._choice is OnUnhandled.KEEP

    def settlement(self, claim: Claim) -> Settlement:
        """What becomes of an event without a handler."""
        event = claim.event
        if not (self.keeps and event.fence > event.attempts):  # else it was counted before it went back
            self._metrics.unhandled(event)
        if event.type not in self._told:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told.add(event.type)
            logger.warning(
                "event %s of type %r has no handler on any node of bus %r: %s (unhandled=%r). Is the type misspelt? "
                "Further events of this type are not told",
                event.event_id,
                event.type,
                event.bus,
                WHAT_HAPPENS[self._choice],
                self._choice.value,
            )
        if self._choice is OnUnhandled.DEAD_LETTER:
            return Fail(claim.ref, f"{NO_HANDLER} for type {event.type!r} on any node of bus {event.bus!r}", None)
        if self.keeps:
            return Release(claim.ref, _rest(event), reason=NO_HANDLER)
        return Complete(claim.ref, reason=NO_HANDLER)


def _rest(event: Event) -> float:
    """As long as the event has waited so far: a handler that comes late gets it soon, and the log grows slowly."""
    returns = event.fence - event.attempts  # a release gives the attempt back, but not the fence
    return min(KEPT_FIRST * 2.0 ** min(returns, KEPT_DOUBLINGS), KEPT_LONGEST)
