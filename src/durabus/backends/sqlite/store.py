"""The SQLite store, put together from its parts."""

from __future__ import annotations

from durabus.backends.sqlite.address import parse_url
from durabus.backends.sqlite.claims import SQLiteClaims
from durabus.backends.sqlite.dead_letters import SQLiteDeadLetters
from durabus.backends.sqlite.events import SQLiteEvents
from durabus.backends.sqlite.locks import SQLiteLocks
from durabus.backends.sqlite.log import SQLiteLog
from durabus.backends.sqlite.registrations import SQLiteRegistrations
from durabus.backends.sqlite.results import SQLiteResults
from durabus.clock import Clock


class SQLiteStore(
    SQLiteRegistrations, SQLiteEvents, SQLiteClaims, SQLiteResults, SQLiteLocks, SQLiteLog, SQLiteDeadLetters
):
    """One file on a local disk, shared by any number of threads, event loops and processes of one host."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> SQLiteStore:
        """The store behind ``sqlite:///file.db``, not opened yet."""
        return cls(parse_url(url), clock)
