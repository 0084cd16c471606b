"""The structured record of every failed attempt, the last one included."""

from __future__ import annotations

import logging

from durabus.model.event import Event
from durabus.worker.handler import Handler

logger = logging.getLogger("durabus.retry")


def log_failed_attempt(event: Event, handler: Handler, error: str, delay: float | None) -> None:
    """One warning with the fields of seed 003 as extras. ``delay_ms`` is None when there is no further attempt."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    delay_ms = None if delay is None else round(delay * 1000)
    what_next = "no attempt left" if delay_ms is None else f"next in {delay_ms} ms"
    logger.warning(
        "attempt %s of %s failed on %s, %s: %s",
        event.attempts,
        handler.retry.max_attempts or "unlimited",
        event.type,
        what_next,
        error,
        extra={
            "event_id": event.event_id,
            "event_type": event.type,
            "subscription_id": handler.id,
            "attempt": event.attempts,
            "max_attempts": handler.retry.max_attempts,
            "delay_ms": delay_ms,
            "error": error,
        },
    )
