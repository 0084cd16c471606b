"""Events whose handlers this node lacks: another node has them, or no node has any."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from durabus.errors import StoreError
from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Release, Settlement
from durabus.model.statuses import SETTLED, OnUnhandled
from durabus.worker.handler import Handler
from durabus.worker.registry import LIVE, Sighting
from durabus.worker.telemetry import Metrics

REMOTE_DELAY = 0.1
"""Seconds that an event rests for handlers that only other nodes have; each further time ``REMOTE_LONGER`` as long."""
REMOTE_LONGER = 3.0
LONGEST_DELAY = 30.0
MAX_REPORTED = 100
MAX_NAMED = 3
"""Maximum number of handlers that the reason of a release names."""

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

logger = logging.getLogger("durabus.worker")


class RemoteHandlers(Protocol):
    """What this node knows of the handlers of other nodes."""

    def remote_handlers(self, event_type: str, revision: str) -> tuple[str, ...] | None:
        """The ids of the handlers that only other nodes have for a type; None if ``revision`` is not known yet."""
        ...

    async def learn(self, revision: str) -> None:
        """Read the handlers as of ``revision``, or later ones."""
        ...

    def nodes(self) -> int:
        """How many nodes serve the bus, this one included, as far as this node knows."""
        ...

    def any_remote(self) -> bool:
        """Whether other nodes have handlers that this one does not have, as far as this node knows."""
        ...

    def last_seen(self, handler_id: str) -> Sighting | None:
        """When and by which other node a handler was last announced; None if this node does not know it."""
        ...

    def lacked_elsewhere(self) -> tuple[str, ...]:
        """The ids of this node's handlers that another node does not have, as far as this node knows."""
        ...

    async def look(self) -> None:
        """Read the handlers of other nodes again, after a pause."""
        ...


class MissingHandlers:
    """Decides how long an event waits for the handlers that this node does not have.

    ``route`` gives this node's handlers for a type; ``keeps`` tells whether events without any handler wait for one.
    """

    def __init__(
        self, remote: RemoteHandlers | None, *, route: Callable[[str], tuple[Handler, ...]], keeps: Callable[[], bool]
    ) -> None:
        self._remote = remote
        self._route = route
        self._keeps = keeps
        self._reported: set[tuple[str, ...]] = set()

    def nodes(self) -> int:
        """How many nodes serve the bus, as far as this node knows."""
        return 1 if self._remote is None else self._remote.nodes()

    def any_remote(self) -> bool:
        """Whether other nodes have handlers that this one does not have, as far as this node knows."""
        return self._remote is not None and self._remote.any_remote()

    def lacked_elsewhere(self) -> tuple[str, ...]:
        """The ids of this node's handlers that another node does not have, as far as this node knows."""
        return () if self._remote is None else self._remote.lacked_elsewhere()

    def is_live(self, handler_id: str) -> bool:
        """Whether another node that is alive has the handler, as far as this node knows."""
        seen = None if self._remote is None else self._remote.last_seen(handler_id)
        return seen is not None and seen.ago <= LIVE

    async def prepare(self, claim: Claim) -> None:
        """Learn the handlers of other nodes before the events of a batch begin, so that they begin in their order."""
        if self._remote is not None and self._remote.remote_handlers(claim.event.type, claim.revision) is None:
            try:
                await self._remote.learn(claim.revision)
            except StoreError as error:
                # Every event asks again when it begins, and goes back to the queue if that fails.
                logger.debug("handlers of other nodes not learned: %s", error)

    def known(self, claim: Claim) -> tuple[str, ...] | None:
        """The ids of the handlers that only other nodes have for the event; None: ``learn`` them first."""
        return () if self._remote is None else self._remote.remote_handlers(claim.event.type, claim.revision)

    async def learn(self, claim: Claim) -> tuple[str, ...]:
        """Ask the store for the handlers of other nodes, and return the ids of those for the event."""
        while (found := self.known(claim)) is None:
            assert self._remote is not None  # noqa: S101  (without other nodes all handlers are known)
            await self._remote.learn(claim.revision)
        return found

    async def wait(self, claim: Claim) -> bool:
        """Wait for as long as the event only lacks handlers that no live node has; False if it lacks none."""
        waited = False
        while self.lacks_handlers(claim):
            waited = True
            assert self._remote is not None  # noqa: S101  (an event lacks only handlers of other nodes)
            await self._remote.look()
        return waited

    def lacks_handlers(self, claim: Claim) -> bool:
        """Whether the event only waits for handlers that no live node has: registered ones, or any for a kept event."""
        missing = self._without_live_node(claim)
        if missing:
            self._report(claim.event, missing)
        return bool(missing) or self._is_kept(claim)

    def hand_over(self, claim: Claim, missing: tuple[str, ...], results: tuple[HandlerResult, ...]) -> Release:
        """Release an event whose handlers here are done: no live node has the missing ones, or nothing waits for them.

        If no such node is alive, the event rests the longer, the longer they are silent: so its log stays short.
        """
        silent_for, returns = self._silent_for(missing), returns_of(claim.event)
        delay = min(REMOTE_DELAY * REMOTE_LONGER ** min(returns, 10), LONGEST_DELAY)
        if silent_for > LIVE and returns:
            self._report(claim.event, missing)
            delay = max(delay, silent_for / 2)
        return Release(claim.ref, delay, results, self._waits_for(missing))

    def _is_kept(self, claim: Claim) -> bool:
        """Whether no node has a handler, as far as this node knows, and the bus keeps such events."""
        if self._remote is None or not self._keeps() or claim.results or self._route(claim.event.type):
            return False
        return self.known(claim) == ()

    def _without_live_node(self, claim: Claim) -> tuple[str, ...]:
        """The handlers that the event lacks, if no live node has one of them and none is left to run here."""
        others = self.known(claim)
        done = {result.handler_id for result in claim.results if result.status in SETTLED}
        if not others or any(handler.id not in done for handler in self._route(claim.event.type)):
            return ()
        missing = tuple(handler_id for handler_id in others if handler_id not in done)
        return missing if self._silent_for(missing) > LIVE else ()

    def _silent_for(self, missing: tuple[str, ...]) -> float:
        """Seconds since a node last announced one of these handlers."""
        seen = [self._remote.last_seen(handler_id) for handler_id in missing] if self._remote else []
        return min((one.ago for one in seen if one is not None), default=0.0)

    def _waits_for(self, missing: tuple[str, ...]) -> str:
        """The missing handlers in words, each with the node and the time of its last announcement."""
        names = []
        for handler_id in missing[:MAX_NAMED]:
            seen = None if self._remote is None else self._remote.last_seen(handler_id)
            where = "" if seen is None else f", last seen on node {seen.node} {seen.ago:.0f} s ago"
            names.append(f"waits for handler {handler_id}{where}")
        more = len(missing) - MAX_NAMED
        return "; ".join(names) + (f"; and for {more} more" if more > 0 else "")

    def _report(self, event: Event, missing: tuple[str, ...]) -> None:
        """Warn that events wait for these handlers, once for the same handlers."""
        if missing not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported.add(missing)
            logger.warning(
                "event %s (%s) %s. No live node has it, so events of this type wait until a node announces it or its "
                "registration ends. If it is gone for good: durabus handlers forget --bus %s %s",
                event.event_id,
                event.type,
                self._waits_for(missing),
                event.bus,
                " ".join(missing),
            )


def returns_of(event: Event) -> int:
    """How often the event went back to the queue: a release returns the attempt, but not the fence."""
    return event.fence - event.attempts


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
                "event %s of type %r has no handler on any node of bus %r: %s (unhandled=%r). Is the type "
                "misspelt, or do only waits need it? Further events of this type are not logged",
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
    return min(KEPT_FIRST * 2.0 ** min(returns_of(event), KEPT_DOUBLINGS), KEPT_LONGEST)
