"""Log records: one for every failed attempt, and one for every handler or event that is slow."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from durabus.model.event import Event
from durabus.worker.handler import Handler

logger = logging.getLogger("durabus.retry")


def log_failed_attempt(
    event: Event, handler: Handler, error: str, delay: float | None, traceback: str | None = None
) -> None:
    """Log a warning with the fields of the attempt as extras. ``delay_ms`` is None if there is no further attempt.

    The last attempt is logged as an error with its traceback: every formatter shows ``exc_text`` below the line.
    """
    level = logging.ERROR if delay is None else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    delay_ms = None if delay is None else round(delay * 1000)
    what_next = "no further attempt" if delay_ms is None else f"next in {delay_ms} ms"
    limit = handler.retry.max_attempts
    file, line, function, _ = logger.findCaller()
    record = logger.makeRecord(
        logger.name,
        level,
        file,
        line,
        "event %s (%s), handler %s: attempt %s of %s failed, %s: %s",
        (event.event_id, event.type, handler.id, event.attempts, limit or "unlimited", what_next, error),
        None,
        function,
        extra={
            "event_id": event.event_id,
            "event_type": event.type,
            "subscription_id": handler.id,
            "attempt": event.attempts,
            "max_attempts": limit,
            "delay_ms": delay_ms,
            "error": error,
        },
    )
    record.exc_text = traceback if delay is None else None
    logger.handle(record)


slow_logger = logging.getLogger("durabus.slow")


class SlowWarning:
    """Logs one warning if the block takes longer than ``after`` seconds."""

    def __init__(self, event: Event, handler_id: str | None, after: float) -> None:
        self._event = event
        self._handler_id = handler_id
        self._after = after
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._after, self._warn)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _warn(self) -> None:
        event, what = self._event, "event" if self._handler_id is None else f"handler {self._handler_id} of event"
        slow_logger.warning(
            "%s %s (%s) takes longer than %g s, attempt %s",
            what,
            event.event_id,
            event.type,
            self._after,
            event.attempts,
            extra={
                "event_id": event.event_id,
                "event_type": event.type,
                "subscription_id": self._handler_id,
                "attempt": event.attempts,
                "slow_after": self._after,
            },
        )
