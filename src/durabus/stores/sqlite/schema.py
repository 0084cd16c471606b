"""Applies numbered migrations under the write lock, and compares their checksums and tables with the file."""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path

from durabus.errors import StoreUnavailableError
from durabus.stores.sql.migrations import (
    Migration,
    check_applied,
    damaged,
    not_ours,
    read_migrations,
    refuse_missing,
)
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import connect_reader, store_error

PACKAGE = "durabus.stores.sqlite"
_TABLE = (
    "CREATE TABLE IF NOT EXISTS durabus_migrations "
    "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at REAL NOT NULL) STRICT"
)
_OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"


def migrations() -> tuple[Migration, ...]:
    """Return all steps of this version, in order."""
    return read_migrations(PACKAGE)


def migrate(connection: sqlite3.Connection, path: Path, now: float) -> None:
    """Bring the file up to date. The caller holds the write lock; a failed step leaves nothing behind."""
    if _applied(connection, path) == [step.number for step in migrations()]:
        return
    with _Transaction(connection):
        connection.execute(_TABLE)
        done = _applied(connection, path)
        for step in migrations():
            if step.number not in done:
                _run(connection, step.up, step, path)
                connection.execute(
                    "INSERT INTO durabus_migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                    (step.number, step.name, step.checksum, now),
                )


def revert(connection: sqlite3.Connection, path: Path, *, to: int = 0) -> None:
    """Revert steps, the newest first, until ``to`` is the newest. This deletes what their tables hold."""
    with _Transaction(connection):
        done = _applied(connection, path)
        for step in reversed(migrations()):
            if step.number in done and step.number > to:
                _run(connection, step.down, step, path)
                connection.execute("DELETE FROM durabus_migrations WHERE number = ?", (step.number,))


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Compare every table, index and view with what the migrations make. Objects of other programs are ignored."""
    remedy = "open the store once to install it"
    refuse_missing(migrations(), _applied(connection, path), str(path), remedy=remedy)
    actual = _objects(connection)
    for name, expected in _expected().items():
        if actual.get(name) != expected:
            raise damaged(str(path), PACKAGE, expected[0], name, actual.get(name, (None, None))[1])


def _applied(connection: sqlite3.Connection, path: Path) -> list[int]:
    """Return the numbers of the applied steps. Raises for a file of a newer durabus or with an edited step."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'durabus_migrations'").fetchone():
        return []
    rows = connection.execute("SELECT number, name, checksum FROM durabus_migrations ORDER BY number").fetchall()
    anew = "install the durabus that made the file, or start with a new file"
    return check_applied(rows, migrations(), str(path), start_anew=anew)


async def applied_instants(address: SQLiteAddress) -> dict[int, float]:
    """Return when each step was applied to the file, by number. Changes nothing, not even an outdated file."""
    path = address.path
    try:
        connection = connect_reader(path)
        try:
            numbers = _applied(connection, path)
            rows = connection.execute("SELECT number, applied_at FROM durabus_migrations").fetchall() if numbers else []
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror or error}") from error
    return dict(rows)


def _run(connection: sqlite3.Connection, script: str, step: Migration, path: Path) -> None:
    try:
        for sql in _split(script):
            connection.execute(sql)
    except sqlite3.OperationalError as error:
        if "already exists" not in str(error):
            raise
        raise not_ours(str(path), error, step, remedy="give durabus a file of its own") from error


def _split(script: str) -> list[str]:
    statements, lines = [], []
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("--"):
            lines.append(line)
            if sqlite3.complete_statement("\n".join(lines)):  # a trigger has semicolons inside
                statements.append("\n".join(lines).removesuffix(";"))
                lines = []
    return statements


@cache
def _expected() -> dict[str, tuple[str, str]]:
    with sqlite3.connect(":memory:") as model:
        for step in migrations():
            for sql in _split(step.up):
                model.execute(sql)
        expected = _objects(model)
    model.close()
    return expected


def _objects(connection: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    return {name: (kind, " ".join(sql.split())) for kind, name, sql in connection.execute(_OBJECTS)}


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
