"""What a worker can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.event import Event
from durabus.model.limits import check_batch
from durabus.store.contract import EventStore


def check_options(store: EventStore, concurrency: int, lease: float) -> None:
    """Refuse what no worker on this store can do."""
    check_batch(concurrency, "concurrency")
    if not lease > max(store.features.minimum_lease, 0):
        raise ConfigurationError(
            f"lease={lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
        )


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
