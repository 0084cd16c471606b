"""Backs a store up while other processes use it, and restores a backup.

A plain copy of the file lacks what is still in ``-wal``. SQLite's own backup reads both, as of one instant.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

from durabus.errors import ConfigurationError, SchemaError, StoreUnavailableError
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.connection import connect_reader, primary_code, store_error
from durabus.stores.sqlite.file_identity import refuse_second_name
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT, WriteLock

_STEP = 1_000
"""Pages that are copied between two calls of ``moved``."""

Moved = Callable[[int, int], None]
"""Called with the number of copied pages and the total."""


def back_up(store: Path, file: Path, *, overwrite: bool, moved: Moved) -> int:
    """Copy the store into ``file``, check the copy, and return its size in bytes. Other processes keep working.

    ``file`` appears only when the copy is complete, and needs no ``-wal`` beside it.
    """
    _refuse_same(store, file)
    _refuse_existing(file, overwrite=overwrite)
    if Path(f"{file}-wal").exists():
        raise ConfigurationError(f"{file}-wal exists, so {file} is open as a database: choose another name")
    # The name is unique: otherwise two backups at the same time would delete each other's file.
    partial = file.with_name(f"{file.name}.{uuid4().hex}.partial")
    try:
        with _errors_of(store), closing(connect_reader(store)) as source:
            _refuse_other_files(source, store)
            with _errors_of(partial), closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                _copy(source, copy, moved)
                copy.execute("PRAGMA journal_mode = DELETE")
                _check(copy, partial)
        partial.replace(file)
        _sync(file.parent)
    except OSError as error:
        raise StoreUnavailableError(f"{file}: cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def restore(store: Path, file: Path, *, overwrite: bool, moved: Moved) -> int:
    """Replace the contents of the store by those of ``file`` in one transaction. Returns the size in bytes.

    Raises if any process has the store open, or if ``file`` is damaged or no store.
    """
    _refuse_same(store, file)
    if not file.exists():
        raise ConfigurationError(f"{file} does not exist")
    _refuse_existing(store, overwrite=overwrite)
    with _errors_of(file), closing(connect_reader(file)) as source:
        _refuse_other_files(source, file)
        _check(source, file)
        with _alone(store) as target:
            _copy(source, target, moved)
            _check(target, store)
    return store.stat().st_size


@contextmanager
def _alone(store: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a file that no other process has open or can open meanwhile."""
    if store.exists():
        refuse_second_name(store)
    lock = WriteLock(store)
    lock.open()
    try:
        if not lock.acquire_within(BUSY_TIMEOUT, threading.Event()):
            raise lock.refusal()
        with _errors_of(store), closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                raise StoreUnavailableError(
                    f"{store} is in use: stop every worker, server and program that has it open, then try again. "
                    "Nothing was written"
                ) from error
            yield connection
    finally:
        lock.close()


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, moved: Moved) -> None:
    """Copy all pages in one read transaction. Without it, every write of another process would restart the copy."""
    source.execute("BEGIN")
    source.execute("SELECT count(*) FROM sqlite_master").fetchone()
    source.backup(target, pages=_STEP, progress=lambda _, remaining, total: moved(total - remaining, total))
    source.execute("ROLLBACK")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    schema.verify(connection, path)
    damage = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    if damage != ["ok"]:
        raise SchemaError(f"{path} is damaged: {'; '.join(damage)}")


def _refuse_other_files(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'durabus_migrations'").fetchone():
        raise SchemaError(f"{path} is no durabus store: it has no table durabus_migrations")


def _refuse_same(store: Path, file: Path) -> None:
    if file.exists() and store.exists() and file.samefile(store):
        raise ConfigurationError(f"{file} is the store itself: name another file")


def _refuse_existing(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ConfigurationError(f"{path} exists: choose another name, or say --overwrite")


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def _sync(folder: Path) -> None:
    """Write the folder to the disk, so that a new file name survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
