"""Events that ended FAILED or COMPLETED_WITH_ERRORS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.model.event import Event
from durabus.model.query import DeadLetterPage
from durabus.store.events import EventRef


class DeadLetters(Protocol):
    """The store keeps dead letters, with one error for each attempt, until they are requeued, purged or removed."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """Return dead letters, newest ``created_ts`` first (then larger ``id``), and their total number."""
        ...

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        """Put dead letters back into the queue, all or none.

        - Each becomes PENDING and due, with no attempts, no errors, ``generation + 1``, and a REQUEUED entry.
        - If claims on its handlers were valid when it ended, it is due when the last of their leases is over: until
          then a worker may still run the handler.
        - Results of handlers that succeeded, and steps, are kept. The other results are dropped; only their fences are
          kept.
        - An event that was requeued before and has not ended since is returned unchanged: a repeat is harmless.
        - Raises ``EventNotFound`` for an unknown event, ``NotADeadLetter`` for any other, such as a COMPLETED one.
        """
        ...

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        """Delete dead letters with ``created_ts <= created_until_ts`` (inclusive), oldest first. Returns how many.

        Their ids and keys can be used again; their log entries stay.
        """
        ...

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        """Delete those of these events that are dead letters now, and return their ids.

        Events that were requeued in the meantime, were never dead letters or are unknown stay as they are. Ids, keys
        and log entries are treated as in ``purge_dead_letters``.
        """
        ...
