"""A store that fails: when to ask it again, and when to say so."""

from __future__ import annotations

import logging
from collections.abc import Callable

from durabus.clock import monotonic

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 4.0
"""Seconds between two questions: a store that is back is noticed within this time."""


class Outage:
    """Counts from the first failure to the next answer. The longer it lasts, the rarer are questions and log lines.

    It goes by time and not by failures, so all that ask the same store share one, and it ends when each of those whose
    question failed got an answer.
    """

    def __init__(self, logger: logging.Logger, what: str, now: Callable[[], float] = monotonic) -> None:
        self._logger = logger
        self._what = what
        self._now = now
        self.since: float | None = None
        """When the store failed first; None while it answers."""
        self._next_line = 0.0
        self._unanswered: set[str] = set()

    def failed(self, error: BaseException, asked: str = "", *, unforeseen: bool = False) -> float:
        """Seconds to wait before the next question. One line at the first failure and at each doubling of the time.

        ``asked``: what was asked for, if several share this. ``unforeseen``: not an error that a store may raise, so
        the line has its traceback.
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
        """The store answers. If it did not, and no other question waits for its answer, say that this is over."""
        self._unanswered.discard(asked)
        if self.since is not None and not self._unanswered:
            self._logger.info("%s no longer: it lasted %.1f s", self._what, self._now() - self.since)
            self.since = None
