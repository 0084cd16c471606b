"""Taking part in the caller's own transaction, on the caller's own connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durabus.backends.sqlite.connection import primary_code, store_error
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.errors import ConfigurationError, StoreError, StoreUnavailableError

_TAKE_WRITE_LOCK = statement("take_write_lock")
_LEGACY = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 has not yet: a transaction begins with the first write."""


@contextmanager
def in_transaction_of(connection: object, path: Path, now: float) -> Iterator[Transaction]:
    """The caller's open transaction. Runs in the caller's thread, because that is where its connection may be used."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigurationError(
            f"connection={connection!r}: must be a sqlite3.Connection of the standard library to {path}"
        )
    usual = connection.text_factory
    connection.text_factory = str
    try:
        _check(connection, path)
        tx = Transaction(connection, now)
        tx.run(_TAKE_WRITE_LOCK)
        with _all_or_nothing(tx):
            yield tx
    except sqlite3.Error as error:
        raise _error(error, path) from error
    finally:
        connection.text_factory = usual


def _check(connection: sqlite3.Connection, path: Path) -> None:
    cursor = connection.cursor()
    cursor.row_factory = None
    files = {str(name): str(file) for _, name, file in cursor.execute("PRAGMA database_list")}
    file = files.get("main", "")
    if not file or not Path(file).exists() or not path.samefile(file):
        raise ConfigurationError(
            f"connection is to {file or 'a database in memory'}, the store is {path}: "
            "one commit can span only one file, connect to that one"
        )
    if not connection.in_transaction and not _begins_by_itself(connection):
        raise StoreError(
            "connection has no open transaction and does not begin one by itself: "
            'begin a transaction first, connection.execute("BEGIN IMMEDIATE")'
        )
    # The caller's commits must not write the log back: that is done under the store's lock only.
    cursor.execute("PRAGMA wal_autocheckpoint = 0")


def _begins_by_itself(connection: sqlite3.Connection) -> bool:
    """The old way (``isolation_level``) does with the first write. The new one (``autocommit``) always has or never."""
    legacy = getattr(connection, "autocommit", _LEGACY) == _LEGACY
    return legacy and connection.isolation_level is not None


@contextmanager
def _all_or_nothing(tx: Transaction) -> Iterator[None]:
    """An error leaves the caller's transaction as it was before the call."""
    tx.run("SAVEPOINT durabus")
    try:
        yield
    except BaseException:
        if not tx.connection.in_transaction:
            raise  # SQLite itself has rolled everything back
        tx.run("ROLLBACK TO durabus")
        tx.run("RELEASE durabus")
        raise
    tx.run("RELEASE durabus")


def _error(error: sqlite3.Error, path: Path) -> Exception:
    """What the caller can do about it, as the connection is the caller's."""
    if isinstance(error, sqlite3.ProgrammingError):
        return ConfigurationError(
            f"connection cannot be used here: {error}. It must be open, and made in the thread that awaits this call "
            "or with check_same_thread=False"
        )
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailableError(
            f"{path}: connection's transaction has read, and somebody has written since, so it cannot write any more: "
            'roll it back and repeat it, begun with connection.execute("BEGIN IMMEDIATE")'
        )
    if primary_code(error) == sqlite3.SQLITE_BUSY:
        return StoreUnavailableError(
            f"{path}: another connection has written for longer than this one waits: let its transaction end, or wait "
            f"longer, sqlite3.connect(timeout=30) (SQLite: {error})"
        )
    if primary_code(error) == sqlite3.SQLITE_READONLY:
        return ConfigurationError(
            f"connection to {path} may only read ({error}): connect without mode=ro and PRAGMA query_only"
        )
    return store_error(error, path)
