"""An outage of a store: when to call the store again, and when to log that it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durabus.clock import monotonic

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 4.0
"""Longest pause in seconds between two calls: the worker notices within this time that the store is back."""
SILENT_AFTER = 2.0
"""Seconds without a reply after which a call counts as failed, although it may still succeed."""
SELDOM = 10.0
"""Seconds from the first to the second line of a driver or a service: the worker reports the same outage sooner."""
LATE = 30.0
"""Seconds until the first line of a service that fails only with the store, as long as a worker reports that too."""


class Outage:
    """Lasts from the first failed call to the next reply. The longer it lasts, the rarer are calls and log lines.

    It measures time and not failures, so all callers of one store share one outage. It ends when every caller whose
    call failed has got a reply.
    """

    def __init__(
        self,
        logger: logging.Logger,
        what: str,
        now: Callable[[], float] | None = None,
        *,
        first_line: float = 0.0,
        second_line: float = FIRST_PAUSE,
    ) -> None:
        """``first_line`` is the age in seconds at which the outage is first logged, ``second_line`` the time from then.

        An unforeseen error is logged at once.
        """
        self._logger = logger
        self._what = what
        self._now = monotonic if now is None else now  # no default value: a simulation replaces ``monotonic``
        self._first_line = first_line
        self._second_line = second_line
        self.since: float | None = None
        """When the first call failed; None while the store replies."""
        self._next_line = 0.0
        self._answered_at = float("-inf")
        self._unanswered: set[str] = set()
        self._bugs: set[type[BaseException]] = set()
        """Unforeseen errors that were logged in this outage."""

    def failed(
        self, error: BaseException, asked: str = "", *, unforeseen: bool = False, sent: float | None = None
    ) -> float:
        """Note a failed call and return the seconds to wait before the next one.

        It logs a line at the first failure and each time the outage has doubled. ``asked`` names the caller, if several
        share this outage. ``unforeseen`` adds the traceback: a store should not raise such an error, so each kind of it
        gets a line at once. ``sent`` is when the call began, if the outage began then and not now.
        """
        now = self._now()
        self._unanswered.add(asked)
        if self.since is None:
            self.since, self._next_line = now if sent is None else sent, self._first_line
        lasted = now - self.since
        is_new_bug = unforeseen and type(error) not in self._bugs
        if lasted >= self._next_line or is_new_bug:
            if unforeseen:
                self._bugs.add(type(error))
            self._next_line = max(2 * lasted, self._second_line)
            self._logger.warning(
                "%s for %.1f s now, trying again: %s",
                self._what,
                lasted,
                str(error) or type(error).__name__,
                exc_info=error if unforeseen else None,
            )
        return min(max(lasted, FIRST_PAUSE), LONGEST_PAUSE)

    def answered(self, asked: str = "") -> None:
        """Note a reply of the store. If no other caller still waits for one, log that the outage is over."""
        self._answered_at = self._now()
        self._unanswered.discard(asked)
        if self.since is not None and not self._unanswered:
            if self._next_line > self._first_line:  # it was logged
                self._logger.info("%s no longer: it lasted %.1f s", self._what, self._answered_at - self.since)
            self.since = None
            self._bugs.clear()

    @contextmanager
    def noticing_silence(self) -> Iterator[None]:
        """Note a failure while the call inside the block gets no reply, unless the store replies to other calls.

        A store may wait half a minute for its server before a call raises an error. The log must say so sooner.
        """
        sent, loop = self._now(), asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if self._answered_at < sent:
                self.failed(TimeoutError("no answer"), sent=sent)
            timer = loop.call_later(FIRST_PAUSE, look)

        timer = loop.call_later(SILENT_AFTER, look)
        try:
            yield
        finally:
            timer.cancel()
