"""Events as records: the calls that add, read, find, remove and trim them."""

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
        """Store events, all or none, and return them in the order given.

        - Each becomes PENDING with ``attempts=0`` and the next ``id``; ids follow the order of the batch.
        - A new event whose ``event_id``, or ``idempotency_key`` on the same bus, is known already is not stored:
          the stored event is returned in its place, whatever its status. This also holds inside one batch, and makes a
          repeat of the whole call harmless. It is returned as the whole batch leaves it: another event of the batch may
          meet its wait. A key is remembered as long as its event.
        - An ``ordering_key`` is refused without ``ordering_keys``, an ``idempotency_key`` without ``idempotency_keys``.
        - The same atomic step logs one PUBLISHED entry for each stored event.
        - When the call returns, the events survive what ``features`` say that the store survives.
        - ``connection`` is the caller's own connection with an open transaction. The events become visible, durable
          and claimable with its commit, and vanish with its rollback. Refused without ``caller_transactions``.
        """
        ...

    async def get_event(self, ref: EventRef) -> Event | None:
        """Return the event as it is now, live or ended. None if it is unknown, trimmed, purged or removed."""
        ...

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        """Return what ``get_event`` would return for each of ``refs``, in their order, in one call."""
        ...

    async def has_event(self, ref: EventRef) -> bool:
        """Return whether ``get_event`` would return an event."""
        ...

    async def remove_event(self, ref: EventRef) -> bool:
        """Delete an event, whatever its status. Returns False if it was not there.

        A claim on the event is lost: its settlement gets ``LeaseLost``. Its ids and keys can be used again; its log
        entries stay.
        """
        ...

    async def find(self, query: EventQuery) -> EventPage:
        """Return events that meet every condition of ``query``, newest ``id`` first, at most ``query.limit``.

        Following ``next_before_id`` visits each matching event that is not deleted once, whatever is added meanwhile.
        """
        ...

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        """Delete COMPLETED and CANCELLED events that ended ``older_than`` seconds ago or longer, and their entries.

        Oldest ``id`` first, at most ``limit`` in one call. Live events and dead letters are never touched. Returns how
        many were deleted. Their ids and keys can be used again. Events that ended after the position of an archive
        stay, see ``Log.save_position``.
        """
        ...

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        """Like ``trim_event_history``, but delete all such events except the ``keep`` newest by ``id``.

        ``node`` is the address of the caller. With it, the call stops at the first event that ended less than
        ``UNREAD_FOR`` seconds ago and carries the address of another node: that node has yet to read the result.
        """
        ...

    async def counts(self, bus: str | None = None) -> Counts:
        """Return how many events there are in each status, on one bus or on all."""
        ...
