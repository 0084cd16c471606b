"""Events as records: in, out, found, trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.model.event import Event, NewEvent
from durabus.model.query import Counts, EventPage, EventQuery

EventRef = int | str
"""An event's ``id`` (int) or ``event_id`` (str)."""


class Events(Protocol):
    """The history of what was published."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        """Store events, all or none, and answer with them in the order given.

        - Each becomes PENDING with ``attempts=0`` and the next ``id``; ids follow the order of the batch.
        - An ``event_id``, or an ``idempotency_key`` of the same bus, that is known already stores nothing: the stored
          event is answered in its place, whatever its status. This also holds inside one batch, and makes a repeat
          of the whole call harmless. A key is remembered as long as its event.
        - With an ``ordering_key``, refused without ``ordering_keys``; with an ``idempotency_key``, refused without
          ``idempotency_keys``.
        - One PUBLISHED entry per stored event is logged in the same atomic step.
        - When the call returns, the events survive whatever ``features`` say.
        - ``connection``: the caller's own connection with its open transaction. The events become visible, durable
          and claimable with its commit, and vanish with its rollback. Refused without ``caller_transactions``.
        """
        ...

    async def get_event(self, ref: EventRef) -> Event | None:
        """The event as it stands, live or ended. None if unknown, trimmed, purged or removed."""
        ...

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        """What ``get_event`` would answer to each of ``refs``, in their order, in one call."""
        ...

    async def has_event(self, ref: EventRef) -> bool:
        """Whether ``get_event`` would answer with an event."""
        ...

    async def remove_event(self, ref: EventRef) -> bool:
        """Delete an event whatever its status. False if it was not there.

        A claim on it is lost: settling it is answered with ``LeaseLost``. Its ids and keys are free again; its log
        entries stay.
        """
        ...

    async def find(self, query: EventQuery) -> EventPage:
        """Events that meet every condition of ``query``, newest ``id`` first, at most ``query.limit``.

        Following ``next_before_id`` visits each matching event that stays once, whatever is added meanwhile.
        """
        ...

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        """Forget COMPLETED events, with their log entries, that ended ``older_than`` seconds ago or longer.

        Oldest ``id`` first, at most ``limit`` in one call; live events and dead letters are never touched. Returns how
        many were forgotten. Their ids and keys are free again.
        """
        ...

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000) -> int:
        """Like ``trim_event_history``, but forget all COMPLETED events beyond the ``keep`` newest by ``id``."""
        ...

    async def counts(self, bus: str | None = None) -> Counts:
        """How many events there are in each status, of one bus or of all."""
        ...
