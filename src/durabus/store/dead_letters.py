"""Events that ended FAILED or COMPLETED_WITH_ERRORS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.model.event import Event
from durabus.model.query import DeadLetterPage
from durabus.store.events import EventRef


class DeadLetters(Protocol):
    """Kept, with one error per attempt, until somebody retries or purges them."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """Dead letters newest ``created_ts`` first (then larger ``id``), and how many there are in all."""
        ...

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        """Bring dead letters back, all or none.

        - PENDING and due, no attempts, no errors, ``generation + 1``, a REQUEUED entry each.
        - Results of handlers that succeeded are kept, the others are dropped; only a fence they had is remembered.
        - An event that was requeued before and has not ended since is returned unchanged: a repeat is harmless.
        - Raises ``EventNotFound``, or ``NotADeadLetter`` for any other event, such as one that is COMPLETED.
        """
        ...

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        """Delete dead letters with ``created_ts <= created_until_ts`` (inclusive), oldest first. Returns how many.

        Their ids and keys are free again; their log entries stay.
        """
        ...

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        """Delete those of these events that are dead letters now, and answer their ids.

        One that was requeued meanwhile is left alone, as is what was never a dead letter or is unknown. What becomes of
        their ids, keys and log entries is as above.
        """
        ...
