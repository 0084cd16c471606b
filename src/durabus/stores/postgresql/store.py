"""The PostgreSQL store: its parts as one class."""

from __future__ import annotations

from durabus.clock import Clock
from durabus.stores.postgresql.address import parse_url
from durabus.stores.postgresql.claims import PostgreSQLClaims
from durabus.stores.postgresql.dead_letters import PostgreSQLDeadLetters
from durabus.stores.postgresql.events import PostgreSQLEvents
from durabus.stores.postgresql.locks import PostgreSQLLocks
from durabus.stores.postgresql.log import PostgreSQLLog
from durabus.stores.postgresql.processes import PostgreSQLProcesses
from durabus.stores.postgresql.registrations import PostgreSQLRegistrations
from durabus.stores.postgresql.results import PostgreSQLResults


class PostgreSQLStore(
    PostgreSQLRegistrations,
    PostgreSQLProcesses,
    PostgreSQLEvents,
    PostgreSQLClaims,
    PostgreSQLResults,
    PostgreSQLLocks,
    PostgreSQLLog,
    PostgreSQLDeadLetters,
):
    """One schema of a PostgreSQL database, shared by any number of threads, event loops, processes and hosts."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> PostgreSQLStore:
        """Return the store of ``postgresql://user@host/database``, not opened yet."""
        return cls(parse_url(url), clock)
