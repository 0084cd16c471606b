"""What all parts of the store share: the file, the clock, the check that it is open, and how calls run.

A call runs in a thread of the store, or in the caller's own transaction on a connection of any supported library.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from durabus.clock import Clock
from durabus.errors import ConfigurationError, StoreClosedError, StoreError, StoreUnavailableError
from durabus.store.callers import NO_TRANSACTION, WRAPPED, driver_of, is_from
from durabus.store.features import Features
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import Operation, Transaction, Watch, check_version, primary_code, store_error
from durabus.stores.sqlite.database_file import OpenFile, Opening
from durabus.stores.sqlite.file_locks import StoreTime, supported
from durabus.stores.sqlite.layout import SQL
from durabus.stores.wakeups import ENDS

T = TypeVar("T")

_CLOSED = -1
_LEGACY = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 lacks: the first write begins a transaction."""


class SQLiteCore:
    """Opens and closes the file, and passes calls to its writer or reader thread."""

    def __init__(self, address: SQLiteAddress, clock: Clock | None = None) -> None:
        self._path = address.path.resolve()
        self._address = replace(address, path=self._path)
        self._time = StoreTime(clock)
        self._now = self._time.now
        self._gate = threading.Lock()
        self._process = 0
        self._opening: Opening | None = None
        self._file: OpenFile
        self.features = Features(
            scheme="sqlite",
            survives_process_kill=True,
            survives_power_loss=address.synchronous == "full",
            shared_between_processes=True,
            caller_transactions=True,
            manual_clock=True,
            ordering_keys=True,
            claims_by_event_id=True,
            calls_in_order=True,
            sees_ended_processes=supported(),
        )

    async def open(self) -> None:
        check_version()
        with self._gate:
            if self._process:
                self._check_open()
                return
            if self._opening is None or not self._opening.join():
                self._opening = Opening(lambda given_up: OpenFile(self._address, self._time, given_up))
            opening = self._opening
        file = await opening.wait()
        with self._gate:
            if self._process == _CLOSED:
                self._check_open()
            self._file = file
            self._process = os.getpid()

    async def close(self) -> None:
        with self._gate:
            if self._process not in (0, _CLOSED):
                self._check_open()
            self._process = _CLOSED
            opening = self._opening
        if opening is not None:
            await asyncio.to_thread(opening.close)

    async def verify(self) -> None:
        await self._read(lambda tx: schema.verify(tx.connection, self._path))

    async def now(self) -> float:
        self._check_open()
        return self._now()

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._check_open()
        watch = Watch(bus)
        self._file.writer.submit(watch)
        try:
            async with asyncio.timeout(timeout):
                return await watch.future
        except TimeoutError:
            return False

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ARG002, ASYNC109  (the contract's names)
        """See ``EventStore``: every commit of another process wakes all nodes, because it may have ended an event."""
        return await self.wait_for_work(ENDS, timeout=timeout)

    async def tell_ends(self, nodes: Sequence[str]) -> None:  # noqa: ARG002  (the contract's name)
        """See ``EventStore``: this wakes the nodes of this process; the commit of the end has woken the others."""
        await self._write(lambda tx: tx.woken.add(ENDS))

    async def _write(self, run: Callable[[Transaction], T]) -> T:
        """Run in the next write transaction. Returns when it is committed."""
        self._check_open()
        operation = Operation(run)
        self._file.writer.submit(operation)
        answer: T = await operation.future
        return answer

    async def _read(self, run: Callable[[Transaction], T]) -> T:
        """Run in a read transaction of its own."""
        self._check_open()
        operation = Operation(run)
        self._file.reader.submit(operation)
        answer: T = await operation.future
        return answer

    async def _join(self, connection: object, run: Callable[[Transaction], T]) -> T:
        """Run in the open transaction of the caller's own connection."""
        self._check_open()
        self._file.identity.check()
        return await run_in_transaction_of(connection, self._path, self._now(), run)

    def _check_open(self) -> None:
        process = os.getpid()
        if self._process == process:
            return
        if self._process == 0:
            raise StoreClosedError(
                f"the store on {self._path} is not open yet: await open() first, or use open_store()"
            )
        if self._process == _CLOSED:
            raise StoreClosedError(f"the store on {self._path} is closed: open a new one")
        raise StoreClosedError(
            f"the store on {self._path} was opened in process {self._process} and is used in its child {process}: "
            "open a store in each process, after the fork"
        )


async def run_in_transaction_of(connection: object, path: Path, now: float, run: Callable[[Transaction], T]) -> T:
    """Run in the caller's open transaction, in the thread that may use its connection."""
    driver = await driver_of(connection, "sqlite")
    if is_from(type(driver), "aiosqlite") and hasattr(driver, "_execute"):
        try:
            inner = driver._conn  # noqa: SLF001  (aiosqlite has no public name for it)
        except ValueError as error:
            raise ConfigurationError(f"connection cannot be used here: {error}. It must be open") from error
        # The public calls of aiosqlite run one statement each. This one runs a function in the connection's own thread.
        result: T = await driver._execute(_run, inner, path, now, run)  # noqa: SLF001
        return result
    if not isinstance(driver, sqlite3.Connection):
        raise ConfigurationError(
            f"connection={type(connection).__name__} for {path}: must be a connection to it from sqlite3 or aiosqlite, "
            f"{WRAPPED}, or a Django connection"
        )
    return _run(driver, path, now, run)


def _run(connection: sqlite3.Connection, path: Path, now: float, run: Callable[[Transaction], T]) -> T:
    usual = connection.text_factory
    connection.text_factory = str
    try:
        _check(connection, path)
        tx = Transaction(connection, now)
        tx.run(SQL["take_write_lock"])
        with _all_or_nothing(tx):
            return run(tx)
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
        raise StoreError(f'{NO_TRANSACTION}, connection.execute("BEGIN IMMEDIATE")')
    # The caller's commits must not run a checkpoint: only the holder of the store's write lock may.
    cursor.execute("PRAGMA wal_autocheckpoint = 0")


def _begins_by_itself(connection: sqlite3.Connection) -> bool:
    """Return whether the first write begins a transaction: true with ``isolation_level``, false with ``autocommit``."""
    legacy = getattr(connection, "autocommit", _LEGACY) == _LEGACY
    return legacy and connection.isolation_level is not None


@contextmanager
def _all_or_nothing(tx: Transaction) -> Iterator[None]:
    """Undo everything that the call wrote if it raises. The caller's transaction stays open."""
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
    """Return an error that tells the caller how to fix its connection."""
    if isinstance(error, sqlite3.ProgrammingError):
        return ConfigurationError(
            f"connection cannot be used here: {error}. It must be open, and made in the thread that awaits this call "
            "or with check_same_thread=False"
        )
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailableError(
            f"{path}: connection's transaction has read, and another one has written since, so it can no longer write: "
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
