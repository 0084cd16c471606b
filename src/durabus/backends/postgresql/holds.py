"""Says once which open transaction keeps the readers of the log waiting."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from durabus.clock import monotonic
from durabus.model.log_entry import LogHold

LOOK_EVERY = 5.0
"""Seconds. A reader that has read all looks twice a second; only one in ten of its looks asks this, too."""

logger = logging.getLogger("durabus.postgresql")


class Holds:
    """One for each store object. Asked when a reader of the log got nothing."""

    def __init__(self, ask: Callable[[], Awaitable[LogHold | None]]) -> None:
        self._ask = ask
        self._next = 0.0
        self._told: tuple[int | None, str] | None = None

    async def look(self) -> None:
        """Warn of a transaction that was not warned of before, and say when the log is free again."""
        if monotonic() < self._next:
            return
        self._next = monotonic() + LOOK_EVERY
        hold = await self._ask()
        found = None if hold is None else (hold.pid, hold.application)
        if found == self._told:
            return
        self._told = found
        if hold is None:
            logger.info("the log can be read to its end again")
        else:
            logger.warning(
                "readers of the log have waited for %.0f s: %s keeps committed entries from them; commit or end it",
                hold.waiting,
                hold.holder,
            )
