"""Suspensions: the sleeps and waits of one attempt that are not over, and when the first of them ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from durabus.model.event import Event
from durabus.model.result import HandlerResult, Suspended

TOGETHER = 0.01
"""Sleeps and waits whose ends are at most so many seconds apart share one wake-up."""


logger = logging.getLogger("durabus.worker")


class Suspension(NamedTuple):
    """A sleep or wait of this attempt that is not over: it has raised ``Suspended``."""

    verb: str
    end: float
    """When the handler goes on, by the clock of the store."""
    kept: HandlerResult | None
    """What the store must keep of it, if it does not know it yet."""


class Suspensions:
    """All sleeps and waits of an attempt that are not over.

    They include those whose exception did not reach the end of the handler, as in a ``gather``, which raises only the
    first one. ``now`` returns the time by the clock of the store.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all: list[Suspension] = []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._all)

    def begin(self, verb: str, end: float, kept: HandlerResult | None) -> Suspended:
        """Note a sleep or wait, and return the exception that ends the attempt."""
        self._all.append(Suspension(verb, end, kept))
        return Suspended(self._left(end))

    def count(self, verb: str) -> int:
        """Return how many of them come from this verb."""
        return sum(one.verb == verb for one in self._all)

    @property
    def kept(self) -> tuple[HandlerResult, ...]:
        """What the store must keep of them."""
        return tuple(one.kept for one in self._all if one.kept is not None)

    @property
    def verbs(self) -> str:
        """The verbs of the context that they come from, as a text."""
        return " and ".join(dict.fromkeys(f"ctx.{one.verb}" for one in self._all))

    def goes_on_in(self, delay: float) -> float:
        """Return the seconds until the first of them ends, or ``delay``. Ends right after it share its wake-up."""
        delays = [delay, *(self._left(one.end) for one in self._all)]
        together = min(delays) + TOGETHER
        return max(one for one in delays if one <= together)

    def _left(self, end: float) -> float:
        return max(end - self._now(), 0.0)


def warn_of_held_children(handler_id: str, event: Event, count: int) -> None:
    """Log that a handler waits for an event while the store does not have the children it emitted."""
    logger.warning(
        "handler %s of event %s (%s) waits for an event, and %d events that it emitted before are not stored: they are "
        "stored with its success, so an answer to them cannot come. Store them before the wait: "
        "await ctx.emit(...).stored(), or emit them in a step",
        handler_id,
        event.event_id,
        event.type,
        count,
    )
