"""Runs a call of the store in the caller's own transaction, on a connection of any supported library.

``store.callers`` finds the driver's connection behind the library's: psycopg (sync or async) or asyncpg.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from durabus.errors import ConfigurationError, StoreError
from durabus.store.callers import NO_TRANSACTION, WRAPPED, driver_of, is_from
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Ask, PostgreSQLSession, store_error
from durabus.stores.postgresql.sql import Statements

_ACCEPTED = (
    f"must be a connection to it from psycopg 3 (sync or async) or asyncpg, {WRAPPED}, or a Django connection over "
    "psycopg 3"
)


class CallerContext:
    """What a session on a caller's connection needs of the store."""

    def __init__(self, address: PostgreSQLAddress, sql: Statements, clock: Callable[[], float | None]) -> None:
        self.address = address
        self.sql = sql
        self.clock = clock
        self.installation: str | None = None
        """The id that tells this schema from one of the same name in another database."""
        self.checked: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections that were checked to lead to this schema. They need no second check."""


@asynccontextmanager
async def in_transaction_of(connection: object, home: CallerContext) -> AsyncIterator[PostgreSQLSession]:
    """Yield a session in the caller's open transaction. A sync connection is used in the caller's thread."""
    driver = await driver_of(connection, "postgresql")
    ask = _ask_of(driver, connection, home)
    try:
        await _check(driver, ask, home)
        channel = home.address.channel if home.address.listen else None
        yield PostgreSQLSession(ask, home.sql, now=home.clock(), channel=channel)
    except Exception as error:
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError) or is_from(type(error), "psycopg"):
            raise store_error(error, home.address.shown) from error
        raise


def _ask_of(driver: Any, given: object, home: CallerContext) -> Ask:
    if is_from(type(driver), "asyncpg") and hasattr(driver, "is_in_transaction"):
        if not driver.is_in_transaction():
            raise StoreError(f"{NO_TRANSACTION} (async with connection.transaction(): …)")
        fetch: Ask = driver.fetch
        return fetch
    if is_from(type(driver), "psycopg") and hasattr(driver, "pgconn"):
        if driver.autocommit and driver.info.transaction_status.name == "IDLE":
            raise StoreError(f"{NO_TRANSACTION} (with connection.transaction(): …)")
        return _ask_psycopg(driver)
    refused = "psycopg2 cannot take part, psycopg 3 can; it " if is_from(type(driver), "psycopg2") else ""
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


async def _check(driver: Any, ask: Ask, home: CallerContext) -> None:
    """Raise for another database before anything is written, without an SQL error that would end the transaction."""
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
