"""Events that no node has a handler for: the bus completes them, keeps them or makes them dead letters."""

from __future__ import annotations

import logging

from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Release, Settlement
from durabus.model.statuses import OnUnhandled
from durabus.worker.metrics import Metrics

logger = logging.getLogger("durabus.worker")

MAX_WARNED = 10_000
"""Maximum number of types to remember: types made up at run time must not fill the memory."""

KEPT_FIRST = 1.0
"""Seconds until a worker claims a kept event again. From then on the worker holds the claim. While it holds too many,
the event goes back once more, each time for twice as long."""
KEPT_DOUBLINGS = 12
KEPT_LONGEST = 3600.0

WHAT_HAPPENS = {
    OnUnhandled.COMPLETE: "it completes without work",
    OnUnhandled.KEEP: "it waits in the queue",
    OnUnhandled.DEAD_LETTER: "it becomes a dead letter",
}


class Unhandled:
    """Settles and counts events without a handler, and warns once for each type: the type may be misspelt."""

    def __init__(self, choice: OnUnhandled, metrics: Metrics) -> None:
        self._choice = choice
        self._metrics = metrics
        self._warned: set[str] = set()

    @property
    def keeps(self) -> bool:
        """Whether events without a handler wait for one."""
        return self._choice is OnUnhandled.KEEP

    def settlement(self, claim: Claim) -> Settlement:
        """The settlement of an event without a handler."""
        event = claim.event
        if not (self.keeps and event.fence > event.attempts):  # otherwise it was counted before it went back
            self._metrics.unhandled(event)
        if event.type not in self._warned:
            if len(self._warned) >= MAX_WARNED:
                self._warned.clear()
            self._warned.add(event.type)
            logger.warning(
                "event %s of type %r has no handler on any node of bus %r: %s (unhandled=%r). Is the type misspelt? "
                "Further events of this type are not logged",
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
    """Seconds until the next claim: about as long as the event has waited so far, so that its log grows slowly."""
    returns = event.fence - event.attempts  # a release gives the attempt back, but not the fence
    return min(KEPT_FIRST * 2.0 ** min(returns, KEPT_DOUBLINGS), KEPT_LONGEST)
