"""What a handler may know about the attempt it is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.event import Event


class Context(msgspec.Struct, frozen=True, gc=False):
    """Handed to a handler that takes a second argument."""

    event: Event
    worker_id: str
    emitter: Callable[..., Any] | None = None
    """The bus that runs the handler, if it is one."""

    @property
    def fence(self) -> int:
        """Hand this to outside systems: they must refuse a smaller one than they have seen for this event."""
        return self.event.fence

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.event.attempts

    def emit(self, event_type: str | object, payload: Any = None, **options: Any) -> Any:
        """``EventBus.emit`` of a child of this event; answers its handle."""
        if self.emitter is None:
            raise ConfigurationError(f"ctx.emit({event_type!r}): this handler is not run by an EventBus")
        return self.emitter(event_type, payload, **options)
