"""The SQLite store: its parts as one class."""

from __future__ import annotations

from durabus.clock import Clock
from durabus.stores.sqlite.address import parse_url
from durabus.stores.sqlite.claims import SQLiteClaims
from durabus.stores.sqlite.dead_letters import SQLiteDeadLetters
from durabus.stores.sqlite.events import SQLiteEvents
from durabus.stores.sqlite.locks import SQLiteLocks
from durabus.stores.sqlite.log import SQLiteLog
from durabus.stores.sqlite.processes import SQLiteProcesses
from durabus.stores.sqlite.registrations import SQLiteRegistrations
from durabus.stores.sqlite.results import SQLiteResults


class SQLiteStore(
    SQLiteRegistrations,
    SQLiteProcesses,
    SQLiteEvents,
    SQLiteClaims,
    SQLiteResults,
    SQLiteLocks,
    SQLiteLog,
    SQLiteDeadLetters,
):
    """One file on a local disk, shared by any number of threads, event loops and processes of one host."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> SQLiteStore:
        """Return the store of ``sqlite:///file.db``, not opened yet."""
        return cls(parse_url(url), clock)
