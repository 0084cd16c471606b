"""Taking part in the caller's own transaction, on the caller's own connection, whichever library it came from.

Nothing of these libraries is imported: a connection is recognised by where its class was defined. What is underneath is
always one of three drivers' connections, and those are asked directly.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from durabus.backends.postgresql.address import Address
from durabus.backends.postgresql.connection import store_error
from durabus.backends.postgresql.session import Ask, Session
from durabus.backends.postgresql.sql import Statements
from durabus.errors import ConfigurationError, StoreError

_ACCEPTED = (
    "must be a connection to it from psycopg 3 (sync or async) or asyncpg, a SQLAlchemy Session, AsyncSession, "
    "Connection or AsyncConnection over one of them, or a Django connection over psycopg 3"
)
_NO_TRANSACTION = "connection has no open transaction and does not begin one by itself: begin a transaction first"


class Home:
    """What a session on a caller's connection needs to know of the store."""

    def __init__(self, address: Address, sql: Statements, clock: Callable[[], float | None]) -> None:
        self.address = address
        self.sql = sql
        self.clock = clock
        self.installation: str | None = None
        """Tells our schema from one of the same name in another database."""
        self.checked: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections that were seen to lead to our schema: they will not change their mind."""


@asynccontextmanager
async def in_transaction_of(connection: object, home: Home) -> AsyncIterator[Session]:
    """The caller's open transaction. A connection that blocks is used right here, in the caller's thread."""
    driver = await _driver_of(connection)
    ask = _ask_of(driver, connection, home)
    try:
        await _check(driver, ask, home)
        channel = home.address.channel if home.address.listen else None
        yield Session(ask, home.sql, now=home.clock(), channel=channel)
    except Exception as error:
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError) or _is_from(type(error), "psycopg"):
            raise store_error(error, home.address.shown) from error
        raise


async def _driver_of(connection: object) -> Any:
    """The driver's connection behind what a library gave, with that library's transaction begun."""
    found: Any = connection
    kinds = {kind.__name__ for kind in type(found).__mro__ if _is_from(kind, "sqlalchemy")}
    if kinds & {"scoped_session", "async_scoped_session"}:
        found = found()
        kinds = {kind.__name__ for kind in type(found).__mro__}
    if "AsyncSession" in kinds:
        found = await found.connection()
        kinds = {"AsyncConnection"}
    if "AsyncConnection" in kinds:
        await found.exec_driver_sql("SELECT 1")  # the dialect begins its transaction with the first statement
        return (await found.get_raw_connection()).driver_connection
    if "Session" in kinds:
        found = found.connection()
        kinds = {"Connection"}
    if "Connection" in kinds:
        return found.connection.driver_connection
    if _is_django(found):
        return _driver_of_django(found)
    return found


def _is_django(connection: Any) -> bool:
    return _is_from(type(connection), "django") and getattr(connection, "vendor", None) == "postgresql"


def _driver_of_django(connection: Any) -> Any:
    # attributes, because Django refuses its own methods inside an event loop
    if connection.connection is None or not (connection.in_atomic_block or not connection.autocommit):
        raise StoreError(
            f"{_NO_TRANSACTION} (with transaction.atomic(): …), and hand over transaction.get_connection(): "
            "django.db.connection is another one inside an event loop"
        )
    return connection.connection


def _ask_of(driver: Any, given: object, home: Home) -> Ask:
    if _is_from(type(driver), "asyncpg") and hasattr(driver, "is_in_transaction"):
        if not driver.is_in_transaction():
            raise StoreError(f"{_NO_TRANSACTION} (async with connection.transaction(): …)")
        fetch: Ask = driver.fetch
        return fetch
    if _is_from(type(driver), "psycopg") and hasattr(driver, "pgconn"):
        if driver.autocommit and driver.info.transaction_status.name == "IDLE":
            raise StoreError(f"{_NO_TRANSACTION} (with connection.transaction(): …)")
        return _ask_psycopg(driver)
    refused = "psycopg2 cannot take part, psycopg 3 can; it " if _is_from(type(driver), "psycopg2") else ""
    raise ConfigurationError(f"connection={type(given).__name__} for {home.address.shown}: {refused}{_ACCEPTED}")


def _ask_psycopg(driver: Any) -> Ask:
    psycopg = sys.modules["psycopg"]
    tuples = psycopg.rows.tuple_row
    if isinstance(driver, psycopg.AsyncConnection):

        async def ask_async(sql: str, *arguments: Any) -> Any:
            async with psycopg.AsyncRawCursor(driver, row_factory=tuples) as cursor:
                await cursor.execute(sql, arguments or None)
                return await cursor.fetchall() if cursor.description else []

        return ask_async

    async def ask(sql: str, *arguments: Any) -> Any:
        with psycopg.RawCursor(driver, row_factory=tuples) as cursor:
            cursor.execute(sql, arguments or None)
            return cursor.fetchall() if cursor.description else []

    return ask


async def _check(driver: Any, ask: Ask, home: Home) -> None:
    """Refuse another database before anything is written, and without an error that would end the transaction."""
    checked = getattr(driver, "_con", driver)  # asyncpg's pool lends a new wrapper each time
    if checked in home.checked:
        return
    name = f'"{home.address.schema}".installation'
    there = (await ask("SELECT current_database(), to_regclass($1::text) IS NOT NULL", name))[0]
    installation = (await ask(f"SELECT id::text FROM {name}"))[0][0] if there[1] else None  # noqa: S608  (our own name)
    if installation != home.installation:
        raise ConfigurationError(
            f"connection is to database {there[0]!r}, which does not hold the schema of {home.address.shown}: "
            "one commit can span only one database, connect to that one"
        )
    home.checked.add(checked)


def _is_from(kind: type, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in kind.__mro__)
