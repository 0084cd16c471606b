"""The one thread of a store object that writes: everything that waits shares one transaction (group commit)."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from durabus.backends.sqlite.connection import BUSY_TIMEOUT, WAL_LIMIT, is_about_the_disk, store_error
from durabus.backends.sqlite.flock import WriteLock
from durabus.backends.sqlite.notice import notice
from durabus.backends.sqlite.operation import NOTICED, STOP, Operation, Signal, Watch, deliver
from durabus.backends.sqlite.publishing import add_events
from durabus.backends.sqlite.transaction import Transaction
from durabus.backends.sqlite.turn import Turn
from durabus.backends.sqlite.wakeup import Wakeup
from durabus.clock import monotonic
from durabus.errors import DurabusError, StoreClosedError, StoreError

GROUP = 500
"""Calls that share one transaction at most, so that other processes get their turn."""
_LOOK_AT_WAL_EVERY = 16
_SHRINK_WAL_EVERY = 1.0


class Writer:
    """Takes operations from any thread, in order; answers them after the commit they were part of."""

    def __init__(self, path: Path, lock: WriteLock, now: Callable[[], float]) -> None:
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        self._lock = lock
        self._now = now
        self._queue: SimpleQueue[Operation | Watch | Signal] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._commits = 0
        self._wal_too_large = False
        self._shrunk = 0.0
        self._thread = threading.Thread(target=self._serve, name=f"durabus-writer:{path.name}", daemon=True)
        self._turn = Turn(lock, path, self._take_queued)
        self._connection: sqlite3.Connection
        self._wakeup: Wakeup

    @property
    def commits(self) -> int:
        """Transactions committed so far."""
        return self._commits

    def start(self, connection: sqlite3.Connection) -> None:
        """Begin serving."""
        self._connection = connection
        self._wakeup = Wakeup(connection, notice(self._wal, lambda: self._queue.put(NOTICED)))
        self._thread.start()

    def submit(self, operation: Operation | Watch) -> None:
        """Queue a call from any event loop."""
        with self._gate:
            if self._closed:
                raise StoreClosedError(f"the store on {self._path} is closed")
            self._queue.put(operation)

    def stop(self) -> None:
        """Finish what was accepted, then end the thread. Blocks; safe to call twice."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(STOP)
        if self._thread.is_alive():
            self._thread.join()
        self._turn.close()

    def _serve(self) -> None:
        going = True
        while going:
            group, going = self._next_group()
            operations: list[Operation] = []
            watches: list[Watch] = []
            for item in group:
                if isinstance(item, Watch):
                    watches.append(item)
                elif not item.future.done():
                    operations.append(item)
            if operations:
                self._write(operations)
            with contextlib.suppress(sqlite3.Error):  # hints may be lost; the next write tells what is wrong
                for watch in watches:
                    self._wakeup.watch(watch, self._now())
                if self._wakeup.anybody and self._wakeup.look_again_in() == 0:
                    self._wakeup.look(self._now())
            if self._wal_too_large:
                self._shrink_wal()
        self._wakeup.wake_all()

    def _next_group(self) -> tuple[list[Operation | Watch], bool]:
        """Everything that waits, after a sleep if nothing does."""
        timeout = None
        if self._wakeup.anybody:
            timeout = self._wakeup.look_again_in()
        elif self._wal_too_large:
            timeout = _SHRINK_WAL_EVERY
        group: list[Operation | Watch] = []
        try:
            item = self._queue.get(timeout=timeout)
            while item is not STOP:
                if isinstance(item, Signal):
                    self._wakeup.noticed()
                else:
                    group.append(item)
                    if len(group) == GROUP:
                        return group, True
                item = self._queue.get_nowait()
        except Empty:
            return group, True
        return group, False

    def _write(self, operations: list[Operation]) -> None:
        """All in one transaction; if one of them is guilty of an error, each in its own."""
        tx = None
        try:
            tx = self._transact(operations)
        except sqlite3.Error as error:
            if len(operations) > 1 and not is_about_the_disk(error):
                self._write_each(operations)
                return
            for operation in operations:
                operation.error = store_error(error, self._path)
                operation.error.__cause__ = error
        except Exception as error:  # noqa: BLE001  (a caller's value that SQLite cannot take, or a bug: theirs alone)
            if len(operations) > 1:
                self._write_each(operations)
                return
            operations[0].error = error
        deliver(operations)
        if tx is not None:
            self._wakeup.committed(tx)
            if self._commits % _LOOK_AT_WAL_EVERY == 0:
                self._measure_wal()

    def _write_each(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            operation.error = None
            self._write([operation])

    def _transact(self, operations: list[Operation]) -> Transaction:
        connection = self._connection
        operations = self._turn.wait(operations)
        try:
            connection.execute("BEGIN IMMEDIATE")
            tx = Transaction(connection, self._now())
            _run(tx, operations)
            connection.execute("COMMIT")
            self._commits += 1
        finally:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._turn.end()
        return tx

    def _take_queued(self) -> list[Operation]:
        """What has not been looked at yet, taken out of the queue."""
        taken: list[Operation] = []
        others: list[Watch | Signal] = []
        with contextlib.suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Operation):
                    taken.append(item)
                else:
                    others.append(item)
        for other in others:
            self._queue.put(other)
        return taken

    def _measure_wal(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._wal_too_large = self._wal.stat().st_size > WAL_LIMIT

    def _shrink_wal(self) -> None:
        """Write the log back into the file and cut it. A reader that holds an old snapshot makes this wait."""
        if monotonic() - self._shrunk < _SHRINK_WAL_EVERY or not self._lock.try_acquire():
            return
        self._shrunk = monotonic()
        try:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
            self._lock.release()
        self._measure_wal()


def _run(tx: Transaction, operations: Sequence[Operation]) -> None:
    index = 0
    while index < len(operations):
        operation = operations[index]
        if operation.run is None:
            index = _add_together(tx, operations, index)
            continue
        changes = tx.connection.total_changes
        try:
            operation.result = operation.run(tx)
        except DurabusError as error:
            if isinstance(error, StoreError) or tx.connection.total_changes != changes:
                raise
            operation.error = error
        index += 1


def _add_together(tx: Transaction, operations: Sequence[Operation], start: int) -> int:
    """Neighbouring publishes become one batch. Answers the index after them."""
    end = start + 1
    while end < len(operations) and operations[end].run is None:
        end += 1
    if end == start + 1:
        operations[start].result = add_events(tx, operations[start].new)
        return end
    events = iter(add_events(tx, [one for operation in operations[start:end] for one in operation.new]))
    for operation in operations[start:end]:
        operation.result = [next(events) for _ in operation.new]
    return end
