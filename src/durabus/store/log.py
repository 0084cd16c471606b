"""The event log and the positions of its readers."""

from __future__ import annotations

from typing import Protocol

from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogEntry, LogHold, LogPage, LogRows
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

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        """The entries that ``read_log`` would give, undecoded: for readers of millions, and of what was damaged.

        Each is a tuple in the order of ``LOG_COLUMNS``; a column that does not decode comes as it is.
        """
        ...

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        """Cut what lies after ``after``, up to and with ``until``, into pieces of ``rows`` entries; answer their ends.

        In commit order; the last piece may be shorter; at most the first ``limit``. No entries, no pieces. Pieces can
        be read side by side. Raises ``InvalidEventError`` for a position this store did not make.
        """
        ...

    async def log_head(self) -> str:
        """The position of the newest readable entry; ``START`` if there is none."""
        ...

    async def log_lag(self, after: str) -> int:
        """How many readable entries lie after ``after``."""
        ...

    async def log_hold(self) -> LogHold | None:
        """The transaction that has kept entries from readers for ``HELD_AFTER`` seconds or more; None if none does.

        Such entries are committed, but neither ``read_log`` nor ``log_head`` nor ``log_lag`` knows of them. Only where
        the log waits for open transactions (PostgreSQL); elsewhere None.
        """
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

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000) -> int:
        """Forget what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus.

        - COMPLETED events go with all their entries, as in ``trim_event_history``. Entries that purged or removed
          events left there go too. Live events and dead letters keep all of theirs.
        - Oldest position first, at most ``limit`` events of each kind in one call. Returns how many entries went.
        - Raises ``InvalidEventError`` for a position this store did not make.
        """
        ...
