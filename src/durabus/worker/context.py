"""What a handler may know about the attempt it is part of."""

from __future__ import annotations

import msgspec

from durabus.model.event import Event


class Context(msgspec.Struct, frozen=True, gc=False):
    """Handed to a handler that takes a second argument."""

    event: Event
    worker_id: str

    @property
    def fence(self) -> int:
        """Hand this to outside systems: they must refuse a smaller one than they have seen for this event."""
        return self.event.fence

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.event.attempts
