"""An outage of the store: when to call the store again, and when to log that it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from durabus.clock import monotonic

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 4.0
"""Longest pause in seconds between two calls: the worker notices within this time that the store is back."""


class Outage:
    """Lasts from the first failed call to the next answer. The longer it lasts, the rarer are calls and log lines.

    It measures time and not failures, so all callers of one store share one outage. It ends when every caller whose
    call failed has got an answer.
    """

    def __init__(self, logger: logging.Logger, what: str, now: Callable[[], float] = monotonic) -> None:
        self._logger = logger
        self._what = what
        self._now = now
        self.since: float | None = None
        """When the first call failed; None while the store answers."""
        self._next_line = 0.0
        self._unanswered: set[str] = set()

    def failed(self, error: BaseException, asked: str = "", *, unforeseen: bool = False) -> float:
        """Note a failed call and return the seconds to wait before the next one.

        It logs a line at the first failure and each time the outage has doubled. ``asked`` names the caller, if several
        share this outage. ``unforeseen`` adds the traceback: a store should not raise such an error.
        """
        now = self._now()
        self._unanswered.add(asked)
        if self.since is None:
            self.since, self._next_line = now, 0.0
        lasted = now - self.since
        if lasted >= self._next_line:
            self._next_line = max(2 * lasted, FIRST_PAUSE)
            self._logger.warning(
                "%s for %.1f s now, trying again: %s",
                self._what,
                lasted,
                str(error) or type(error).__name__,
                exc_info=error if unforeseen else None,
            )
        return min(max(lasted, FIRST_PAUSE), LONGEST_PAUSE)

    def answered(self, asked: str = "") -> None:
        """Note an answer of the store. If no other caller still waits for one, log that the outage is over."""
        self._unanswered.discard(asked)
        if self.since is not None and not self._unanswered:
            self._logger.info("%s no longer: it lasted %.1f s", self._what, self._now() - self.since)
            self.since = None
