"""Taking part in the caller's own transaction, on the caller's own connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durabus.backends.sqlite.connection import store_error
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.errors import ConfigurationError, StoreError

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
        raise store_error(error, path) from error
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
    legacy = getattr(connection, "autocommit", _LEGACY) == _LEGACY
    return legacy and connection.isolation_level is not None


@contextmanager
def _all_or_nothing(tx: Transaction) -> Iterator[None]:
    """An error leaves the caller's transaction as it was before the call."""
    tx.run("SAVEPOINT durabus")
    try:
        yield
    except BaseException:
        tx.run("ROLLBACK TO durabus")
        raise
    finally:
        tx.run("RELEASE durabus")
