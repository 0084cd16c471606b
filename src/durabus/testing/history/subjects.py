"""What a recorded call, or its reply, says about one event: the claim, the settlement, the waits."""

from __future__ import annotations

import msgspec

from durabus.model.event import Event
from durabus.model.wait import Scalar


class WaitAsked(msgspec.Struct, frozen=True, gc=False):
    """A wait that a call asks the store to keep under ``name``."""

    name: str
    type: str
    where: tuple[tuple[str, Scalar], ...]
    until: float | None

    def matches(self, event: Event) -> bool:
        """Return whether type and fields of the event are those of the wait."""
        fields = event.payload if isinstance(event.payload, dict) else {}
        return event.type == self.type and all(fields.get(name, self) == value for name, value in self.where)


class Subject(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a call, or its reply, says about one event."""

    id: int | None = None
    event_id: str | None = None
    token: str | None = None
    fence: int | None = None
    what: str | None = None
    """In a call, how the claim shall end: complete, fail or release. In a reply, the event's status."""
    lost: bool = False
    """Whether the reply is ``LeaseLost``."""
    delay: float | None = None
    """Seconds before the event can be claimed (again)."""
    expires: float | None = None
    """When the claim's lease ends, by the store's clock."""
    attempts: int | None = None
    generation: int | None = None
    max_attempts: int | None = None
    ordering_key: str | None = None
    idempotency_key: str | None = None
    bus: str | None = None
    kept: tuple[str, ...] = ()
    """The handlers that succeeded and the steps that were kept, as far as the call stores them."""
    children: tuple[str, ...] = ()
    """The ids of the events that the call stores together with these successes."""
    waits: tuple[WaitAsked, ...] = ()
    """The waits that the call stores."""
    offered: tuple[str, ...] = ()
    """The handlers that the call offers to other nodes."""


class ClaimAsked(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The claim that a call asks for."""

    bus: str
    token: str
    limit: int
    lease: float
    mode: str
    max_attempts: int | None = None
