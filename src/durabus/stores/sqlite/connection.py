"""Connections to the file, and what SQLite's errors mean for a caller."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from durabus.clock import monotonic
from durabus.errors import SchemaError, StoreError, StoreUnavailableError
from durabus.model.event import NewEvent
from durabus.stores.sqlite import file_locks
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT
from durabus.stores.sqlite.rows import Row

OPENING_TIMEOUT = 5.0
"""Seconds that opening a file waits for transactions of others. Only the first one to open it has to write there."""
_TRY_EVERY = 0.01
OLDEST_SQLITE = (3, 37, 0)
CHECKPOINT_PAGES = 2_000
_KEPT_WAL = 16 * 1024 * 1024
_NO_CKPT_ON_CLOSE = 1006
"""``sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE``, which Python 3.11 has not yet."""

_MEANING = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space, the store works again at once",
    sqlite3.SQLITE_IOERR: "the disk refused to read or write (full, over quota or failing): see the system log",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only: make both writable for this user",
    sqlite3.SQLITE_PERM: "the file or its folder is not accessible: make both writable for this user",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: does its folder exist, and may this user write there?",
    sqlite3.SQLITE_BUSY: (
        f"another connection holds a transaction open for more than {BUSY_TIMEOUT:g} s: commit or close it"
    ),
    sqlite3.SQLITE_LOCKED: "another connection holds a lock on a table: commit or close it",
    sqlite3.SQLITE_PROTOCOL: "another process is stopped in the middle of a step: continue it (kill -CONT) or end it",
}
_DAMAGE = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite database: choose another file name, or move the file away",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore a backup, or save what is left with `sqlite3 FILE .recover`",
}


def check_version() -> None:
    """Refuse an SQLite that lacks STRICT tables or RETURNING."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise SchemaError(
            f"this Python is linked to SQLite {sqlite3.sqlite_version}, durabus needs {oldest} or newer: "
            "use a newer Python or system SQLite"
        )


def connect_writer(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """The one connection of this store object that writes. Transactions are begun by hand."""
    with _connecting(path) as connection:
        mode = _write_ahead(connection)
        if mode != "wal":
            raise StoreUnavailableError(
                f"{path}: SQLite cannot use its write-ahead log here (it answered {mode!r}): "
                "put the file on a local disk, not on a network file system"
            )
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_KEPT_WAL}")
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


def _write_ahead(connection: sqlite3.Connection) -> str:
    """Change the journal's mode. SQLite does not wait for the transactions of others here, so this does."""
    deadline = monotonic() + OPENING_TIMEOUT
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            time.sleep(_TRY_EVERY)
        else:
            return mode


@contextmanager
def preparing(path: Path) -> Iterator[None]:
    """Tell those whose own transaction keeps a file from getting its tables what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_BUSY:
            raise
        raise StoreUnavailableError(
            f"{path}: the store cannot make its tables while another connection has a transaction open. If it is your "
            "own, open the store before the transaction begins: `await bus.start()`, or `durabus db migrate` once"
        ) from error


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that never writes and never checkpoints."""
    with _connecting(path) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cache_size = -8000")
        return connection


def wait_for_others(connection: sqlite3.Connection, seconds: float) -> None:
    """How long each statement waits for transactions of others."""
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def is_about_the_disk(error: sqlite3.Error) -> bool:
    """Whether the error says something about the file rather than about one statement."""
    code = primary_code(error)
    return code in _MEANING or code in _DAMAGE


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """The durabus error for what SQLite said: where, what, and what helps."""
    code = primary_code(error)
    if code in _DAMAGE:
        return SchemaError(f"{path} {_DAMAGE[code]} (SQLite: {error})")
    meaning = _MEANING.get(code, "nothing was written")
    return StoreUnavailableError(f"{path}: {meaning} (SQLite: {error})")


@contextmanager
def _connecting(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that is closed again if it cannot be set up."""
    # Threads hand the connection over only at open and close, with everything else at rest.
    connection = sqlite3.connect(
        path, timeout=OPENING_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        _keep_log_at_close(connection)
        yield connection
    except BaseException:
        connection.close()
        raise


def _keep_log_at_close(connection: sqlite3.Connection) -> None:
    """Where a connection cannot know whether it is the last one, it does not delete the log as it closes."""
    configure = getattr(connection, "setconfig", None)  # from Python 3.12 on
    if configure is not None and not file_locks.supported():
        configure(_NO_CKPT_ON_CLOSE, True)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 for what the driver said on its own account."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


Parameters = Mapping[str, Any] | Sequence[Any]

MARK = "\ufffd"
"""Stands for bytes that are no UTF-8."""


class Transaction:
    """Handed to every verb. Rows are always taken at once: a half-read cursor would hold the snapshot open."""

    __slots__ = ("connection", "cursor", "fruitful", "fruitless", "now", "woken")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.now = now
        self.cursor = connection.cursor()
        self.cursor.row_factory = None
        self.woken: set[str] = set()
        """Buses that have something new to claim once this commits."""
        self.fruitful: set[str] = set()
        """Buses that gave somebody something to do."""
        self.fruitless: set[str] = set()
        """Buses that had nothing for somebody, maybe only for that one."""

    def all(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Every row of the answer."""
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
            return self._all_damaged(sql, parameters)

    def one(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The only row, or None."""
        rows = self.all(sql, parameters)
        return rows[0] if rows else None

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """The only column of the only row, or None."""
        rows = self.all(sql, parameters)
        return rows[0][0] if rows else None

    def run(self, sql: str, parameters: Parameters = ()) -> int:
        """How many rows the statement changed."""
        return self.cursor.execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Sequence[Row]) -> int:
        """How many rows the statement changed in all."""
        return self.cursor.executemany(sql, rows).rowcount if rows else 0

    def _all_damaged(self, sql: str, parameters: Parameters) -> list[Row]:
        """Bytes on disk that are no text any more: shown with marks, so that the queue goes on."""
        usual = self.connection.text_factory
        self.connection.text_factory = _marked
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        finally:
            self.connection.text_factory = usual


def _marked(data: bytes) -> str:
    """Text as it is. Damaged text begins with U+FFFD, so that it is no JSON: nobody works on half a payload."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        return text if text.startswith(MARK) else MARK + text


class Operation:
    """One call. Either ``run`` is to be run, or ``new`` is to be added together with its neighbours."""

    __slots__ = ("error", "future", "loop", "new", "result", "run")

    def __init__(self, run: Callable[[Transaction], Any] | None, new: Sequence[NewEvent] = ()) -> None:
        self.run = run
        self.new = new
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


class Watch:
    """A worker that sleeps until its bus may have work."""

    __slots__ = ("bus", "error", "future", "loop", "result")

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bool] = self.loop.create_future()
        self.result = True
        self.error: BaseException | None = None


class Signal:
    """Something for the writer that nobody waits for."""


STOP = Signal()
"""Finish and end."""
NOTICED = Signal()
"""The log was written to."""


def deliver(done: Iterable[Operation | Watch]) -> None:
    """Answer from a store's thread. One wake-up for each event loop, however many calls it made."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Operation | Watch]] = {}
    for operation in done:
        by_loop.setdefault(operation.loop, []).append(operation)
    for loop, operations in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, operations)


def _resolve(operations: list[Operation | Watch]) -> None:
    for operation in operations:
        future = operation.future
        if future.done():
            continue
        if operation.error is None:
            future.set_result(operation.result)
        else:
            future.set_exception(operation.error)
