"""The event log and the positions of its readers."""

from __future__ import annotations

from typing import Protocol

from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogArchives, LogEntry, LogHold, LogPage, LogRows
from durabus.store.events import EventRef

START = ""
"""The position before the first entry."""
ARCHIVE = "archive:"
"""The name of an archive begins with this: a reader that keeps a copy of the log, such as a lake."""


class Log(Protocol):
    """The log is append-only. Each entry is written in the same atomic step as the transition it records."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        """Return the entries after position ``after``, up to and including ``until``, in commit order, at most
        ``limit``.

        A reader that follows ``LogPage.next`` gets every entry once, in order, even while others write. If there is
        nothing new, ``next`` is ``after``. A position is opaque, stays valid, and is never given to a second entry.
        Raises ``InvalidEventError`` for a position that this store did not make.
        """
        ...

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        """Return the entries of ``read_log`` undecoded: for readers of millions of entries, or of damaged ones.

        Each row is a tuple in the order of ``LOG_COLUMNS``. A column that does not decode is returned as it is.
        """
        ...

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        """Divide the entries after ``after``, up to and including ``until``, into pieces of ``rows`` entries.

        Returns the end position of each piece, in commit order, at most the first ``limit``. The last piece may be
        shorter. Without entries the list is empty. Pieces can be read in parallel. Raises ``InvalidEventError`` for a
        position that this store did not make.
        """
        ...

    async def log_head(self) -> str:
        """Return the position of the newest readable entry; ``START`` if there is none."""
        ...

    async def log_lag(self, after: str) -> int:
        """Return how many readable entries there are after position ``after``."""
        ...

    async def log_hold(self) -> LogHold | None:
        """Return the transaction that has hidden entries from readers for ``HELD_AFTER`` seconds or more, or None.

        Such entries are committed, but ``read_log``, ``log_head`` and ``log_lag`` do not see them yet. This happens
        only on PostgreSQL, where the log waits for open transactions; other stores return None.
        """
        ...

    async def make_log_partitions(self) -> int:
        """Make the log partitions of the next days, and return how many were made.

        Any process may call this at any time: a repeat makes none. A store whose log has no partitions returns 0.
        """
        ...

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        """Return the entries of one event, oldest first. The list is empty if the event is unknown."""
        ...

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        """Save how far the reader ``name`` has read. Raises ``LeaseLost`` unless ``lock`` is held by its token.

        None forgets the reader. If its name begins with ``ARCHIVE``, no trim deletes an event that has an entry after
        ``position``. Then the call raises ``InvalidEventError`` for a position that this store did not make. Under any
        other name, ``position`` may be any text: the store does not read it.
        """
        ...

    async def read_position(self, name: str) -> str:
        """Return the position that ``save_position`` saved last; ``START`` if there is none."""
        ...

    async def read_archives(self) -> LogArchives:
        """Return the position of each archive, and whether any entry was ever trimmed.

        A new archive of a log that was trimmed cannot be complete.
        """
        ...

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        """Delete what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus.

        - COMPLETED and CANCELLED events are deleted with all their entries, as in ``trim_event_history``. Entries that
          purged or removed events left there are deleted too. Live events and dead letters keep all their entries.
        - Oldest position first, at most ``limit`` events of each kind in one call. Returns how many entries it deleted.
        - Nothing after the position of an archive is deleted. The archive with the name ``ignoring`` does not count.
        - Raises ``InvalidEventError`` for a position that this store did not make.
        """
        ...
