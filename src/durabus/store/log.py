"""The event log and the positions of its readers."""

from __future__ import annotations

from typing import Protocol

from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogEntry, LogPage
from durabus.store.events import EventRef

START = ""
"""The position before the first entry."""


class Log(Protocol):
    """Append-only; each entry is written in the same atomic step as the transition it records."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        """Entries after position ``after``, up to and with ``until``, in commit order, at most ``limit``.

        Following ``LogPage.next`` gives every entry once, in order, with none skipped, while others write. With nothing
        new, ``next`` is ``after``. A position is opaque, stays valid, and is never given to a second entry.
        Raises ``InvalidEventError`` for a position this store did not make.
        """
        ...

    async def log_head(self) -> str:
        """The position of the newest readable entry; ``START`` if there is none."""
        ...

    async def log_lag(self, after: str) -> int:
        """How many readable entries lie after ``after``."""
        ...

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        """The audit trail of one event, oldest first; empty if it is unknown."""
        ...

    async def save_position(self, name: str, position: str, *, lock: LockClaim) -> None:
        """Remember how far the reader ``name`` has come. Raises ``LeaseLost`` unless ``lock`` is held by its token."""
        ...

    async def read_position(self, name: str) -> str:
        """What ``save_position`` last kept; ``START`` if nothing."""
        ...
