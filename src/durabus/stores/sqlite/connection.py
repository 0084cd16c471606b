"""Connections to the file, SQLite's errors as durabus errors, the transaction, and the calls that threads run."""

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
from durabus.stores.sql.rows import Row
from durabus.stores.sqlite import file_locks
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT

OPENING_TIMEOUT = 5.0
"""Seconds that opening waits for other transactions. Only the first process that opens the file writes to it."""
_TRY_EVERY = 0.01
OLDEST_SQLITE = (3, 37, 0)
CHECKPOINT_PAGES = 2_000
_KEPT_WAL = 16 * 1024 * 1024
_NO_CKPT_ON_CLOSE = 1006
"""``sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE``, which Python 3.11 lacks."""

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
    """Return the only connection of this store object that writes. The writer begins its transactions itself."""
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
    """Switch to the write-ahead log. SQLite does not wait for other transactions here, so this function does."""
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
    """Explain the error if an open transaction, maybe the caller's own, keeps the store from making its tables."""
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
    """Return a connection that never writes and never runs a checkpoint."""
    with _connecting(path) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cache_size = -8000")
        return connection


def wait_for_others(connection: sqlite3.Connection, seconds: float) -> None:
    """Set how long each statement waits for other transactions."""
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def is_about_the_disk(error: sqlite3.Error) -> bool:
    """Return whether the error concerns the file rather than one statement."""
    code = primary_code(error)
    return code in _MEANING or code in _DAMAGE


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the durabus error for an error of SQLite: the file, the cause and the remedy."""
    code = primary_code(error)
    if code in _DAMAGE:
        return SchemaError(f"{path} {_DAMAGE[code]} (SQLite: {error})")
    meaning = _MEANING.get(code, "nothing was written")
    return StoreUnavailableError(f"{path}: {meaning} (SQLite: {error})")


@contextmanager
def _connecting(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a new connection, and close it if its setup fails."""
    # A connection changes its thread only at open and close, when no other thread uses it.
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
    """Keep the log when the connection closes, on systems where it cannot know whether it is the last one."""
    configure = getattr(connection, "setconfig", None)  # from Python 3.12 on
    if configure is not None and not file_locks.supported():
        configure(_NO_CKPT_ON_CLOSE, True)


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's result code without its extension, or 0 if the error comes from the driver."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


Parameters = Mapping[str, Any] | Sequence[Any]

MARK = "\ufffd"
"""Replaces bytes that are not UTF-8."""


class Transaction:
    """An open transaction. It always reads all rows at once: a half-read cursor would hold the snapshot open."""

    __slots__ = ("added", "connection", "cursor", "fruitful", "fruitless", "now", "woken")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.now = now
        self.cursor = connection.cursor()
        self.cursor.row_factory = None
        self.woken: set[str] = set()
        """Buses that have new events to claim once this commits."""
        self.added: set[str] = set()
        """Buses that have new events to claim, unless a later claim of this transaction takes all of them."""
        self.fruitful: set[str] = set()
        """Buses from which this transaction claimed events."""
        self.fruitless: set[str] = set()
        """Buses from which a claim of this transaction got nothing."""

    def all(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run a query and return all rows."""
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
            return self._all_damaged(sql, parameters)

    def one(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Run a query and return its only row, or None."""
        rows = self.all(sql, parameters)
        return rows[0] if rows else None

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """Run a query and return the only column of its only row, or None."""
        rows = self.all(sql, parameters)
        return rows[0][0] if rows else None

    def run(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self.cursor.execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Sequence[Row]) -> int:
        """Run a statement once for each row of parameters and return how many rows it changed."""
        return self.cursor.executemany(sql, rows).rowcount if rows else 0

    def _all_damaged(self, sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Read rows with damaged text. Marks replace the damaged bytes, so that one bad row does not stop the queue."""
        usual = self.connection.text_factory
        self.connection.text_factory = _marked
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        finally:
            self.connection.text_factory = usual


def _marked(data: bytes) -> str:
    """Decode text. Damaged text begins with U+FFFD, so it is no JSON and no handler runs with half a payload."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        return text if text.startswith(MARK) else MARK + text


class Operation:
    """One call for a thread of the store: it runs ``run``, or adds ``new`` together with neighbouring publishes."""

    __slots__ = ("error", "future", "loop", "new", "result", "run")

    def __init__(self, run: Callable[[Transaction], Any] | None, new: Sequence[NewEvent] = ()) -> None:
        self.run = run
        self.new = new
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


class Watch:
    """A worker that waits until its bus may have events to claim."""

    __slots__ = ("bus", "error", "future", "loop", "result")

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bool] = self.loop.create_future()
        self.result = True
        self.error: BaseException | None = None


class Signal:
    """A message to the writer that has no caller waiting for a result."""


STOP = Signal()
"""Tells the writer to finish its queue and end."""
NOTICED = Signal()
"""Tells the writer that a process wrote to the write-ahead log."""


def deliver(done: Iterable[Operation | Watch]) -> None:
    """Pass results from a thread of the store to the waiting calls, with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Operation | Watch]] = {}
    for operation in done:
        by_loop.setdefault(operation.loop, []).append(operation)
    for loop, operations in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: its calls have ended
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
