"""Warnings about what takes long and is not stopped for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from durabus.model.event import Event

logger = logging.getLogger("durabus.slow")


class SlowWarning:
    """Warns once if what is inside takes longer than ``after`` seconds."""

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
        logger.warning(
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
