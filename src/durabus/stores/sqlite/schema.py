"""Applies numbered migrations under the write lock, and compares their checksums and tables with the file."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import connect_reader, store_error

_TABLE = (
    "CREATE TABLE IF NOT EXISTS durabus_migrations "
    "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at REAL NOT NULL) STRICT"
)
_NAME = re.compile(r"(\d{4})_\w+\.sql")
_OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"


class SQLiteMigration(msgspec.Struct, frozen=True, kw_only=True):
    """One migration: the step and its reversal."""

    number: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """The checksum of the step alone: its reversal may change later."""
        return hashlib.sha256(self.up.encode()).hexdigest()


@cache
def migrations() -> tuple[SQLiteMigration, ...]:
    """Return all steps of this version, in order."""
    folder = files(__package__).joinpath("migrations")
    steps = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number = _NAME.fullmatch(file.name)
        if number:
            name = file.name.removesuffix(".sql")
            down = folder.joinpath(f"{name}.down.sql").read_text(encoding="utf-8")
            steps.append(
                SQLiteMigration(number=int(number[1]), name=name, up=file.read_text(encoding="utf-8"), down=down)
            )
    return tuple(steps)


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
    missing = [step.name for step in migrations() if step.number not in _applied(connection, path)]
    if missing:
        raise SchemaError(f"{path}: the schema lacks {', '.join(missing)}: open the store once to install it")
    actual = _objects(connection)
    for name, (kind, sql) in _expected().items():
        if name not in actual:
            raise SchemaError(f"{path}: {kind} {name} is missing: {_REMEDY}")
        if actual[name] != (kind, sql):
            raise SchemaError(
                f"{path}: {kind} {name} is not the one durabus made, it is now `{actual[name][1]}`: {_REMEDY}"
            )


_REMEDY = "restore a backup, or create it again as in durabus/stores/sqlite/migrations"


def _applied(connection: sqlite3.Connection, path: Path) -> list[int]:
    """Return the numbers of the applied steps. Raises for a file of a newer durabus or with an edited step."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'durabus_migrations'").fetchone():
        return []
    rows = connection.execute("SELECT number, name, checksum FROM durabus_migrations ORDER BY number").fetchall()
    known = {step.number: step for step in migrations()}
    for number, name, checksum in rows:
        if number not in known:
            raise SchemaError(
                f"{path} was made by a newer durabus (its schema has {name}, this one knows {len(known)} steps): "
                "upgrade durabus in this process"
            )
        if checksum != known[number].checksum:
            raise SchemaError(
                f"{path}: step {name} was applied in another form than this durabus has: "
                "install the durabus that made the file, or start with a new file"
            )
    return [row[0] for row in rows]


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


def _run(connection: sqlite3.Connection, script: str, step: SQLiteMigration, path: Path) -> None:
    try:
        for sql in _split(script):
            connection.execute(sql)
    except sqlite3.OperationalError as error:
        if "already exists" not in str(error):
            raise
        raise SchemaError(
            f"{path}: {error}, but durabus did not make it ({step.name} is not applied): give durabus a file of its "
            "own, or rename that table"
        ) from error


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
