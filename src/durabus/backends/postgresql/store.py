"""The PostgreSQL store, put together from its parts."""

from __future__ import annotations

from durabus.backends.postgresql.address import parse_url
from durabus.backends.postgresql.claims import PostgreSQLClaims
from durabus.backends.postgresql.dead_letters import PostgreSQLDeadLetters
from durabus.backends.postgresql.events import PostgreSQLEvents
from durabus.backends.postgresql.locks import PostgreSQLLocks
from durabus.backends.postgresql.log import PostgreSQLLog
from durabus.backends.postgresql.registrations import PostgreSQLRegistrations
from durabus.backends.postgresql.results import PostgreSQLResults
from durabus.clock import Clock


class PostgreSQLStore(
    PostgreSQLRegistrations,
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
        """The store behind ``postgresql://user@host/database``, not opened yet."""
        return cls(parse_url(url), clock)
