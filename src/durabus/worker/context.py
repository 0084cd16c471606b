"""The context that a handler gets as its second argument, and the check of a worker's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.event import Event
from durabus.model.limits import check_batch
from durabus.store.contract import EventStore


def check_options(store: EventStore, concurrency: int, lease: float) -> None:
    """Raise ``ConfigurationError`` if no worker on this store can work with these options."""
    check_batch(concurrency, "concurrency")
    if not lease > max(store.features.minimum_lease, 0):
        raise ConfigurationError(
            f"lease={lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
        )


class Context(msgspec.Struct, frozen=True, gc=False):
    """The second argument of a handler that takes one."""

    event: Event
    worker_id: str
    emitter: Callable[..., Any] | None = None
    """``emit`` of the bus that runs the handler; None if no bus does."""

    @property
    def fence(self) -> int:
        """The number to pass to outside systems: they must refuse a smaller one than they have seen for this event."""
        return self.event.fence

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.event.attempts

    def emit(self, event_type: str | object, payload: Any = None, **options: Any) -> Any:
        """Emit a child of this event as ``EventBus.emit`` does; returns its handle."""
        if self.emitter is None:
            raise ConfigurationError(f"ctx.emit({event_type!r}): this handler is not run by an EventBus")
        return self.emitter(event_type, payload, **options)
