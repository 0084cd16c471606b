"""The writer thread of a store object: all calls that wait share one transaction (group commit).

Nothing can interrupt the writer while it waits for the write lock. If the holder is frozen (a stopped process, a hung
disk), a second thread fails the waiting calls after a timeout. The writer skips them when it gets the lock at last.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from durabus.clock import monotonic
from durabus.errors import DurabusError, StoreClosedError, StoreError, StoreUnavailableError
from durabus.stores.sqlite import file_identity
from durabus.stores.sqlite.connection import (
    NOTICED,
    STOP,
    Operation,
    Signal,
    Transaction,
    Watch,
    deliver,
    is_about_the_disk,
    primary_code,
    store_error,
)
from durabus.stores.sqlite.file_identity import Identity
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT, StoreTime, WriteLock
from durabus.stores.sqlite.publishing import add_events
from durabus.stores.sqlite.wakeup import SQLiteWakeup, inotify

_LOOK_EVERY = 1.0


class WriteLockWait:
    """The writer's wait for the write lock, and the thread that limits it."""

    def __init__(self, lock: WriteLock, queued: Callable[[], list[Operation]]) -> None:
        self._lock = lock
        self._queued = queued
        self._gate = threading.Lock()
        self._waiting: list[Operation] | None = None
        self._since = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def frozen(self) -> bool:
        """Whether the writer has waited longer than the timeout."""
        with self._gate:
            return self._waiting is not None and monotonic() - self._since >= BUSY_TIMEOUT

    def wait(self, operations: list[Operation]) -> list[Operation]:
        """Take the lock for ``operations``. Returns those whose callers still wait."""
        if not self._lock.try_acquire():
            self._watch()
            with self._gate:
                self._waiting, self._since = operations, monotonic()
            try:
                self._lock.acquire()
            finally:
                with self._gate:
                    operations, self._waiting = self._waiting, None
        return operations

    def end(self) -> None:
        """Free the lock for the next process."""
        self._lock.release()

    def close(self) -> None:
        """End the thread that limits the wait."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="durabus-write-lock", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while not self._ended.wait(_LOOK_EVERY):
            with self._gate:
                if self._waiting is None or monotonic() - self._since < BUSY_TIMEOUT:
                    continue
                given_up = [*self._waiting, *self._queued()]
                self._waiting = []
            for operation in given_up:
                operation.error = self._lock.refusal()
            deliver(given_up)


GROUP = 500
"""Maximum number of calls that share one transaction, so that other processes can write in between."""
_LOOK_AT_LOCK_EVERY = 0.1


class Writer:
    """Runs write calls from any thread in their order. A call returns after the commit of its transaction."""

    def __init__(self, path: Path, lock: WriteLock, time: StoreTime, at_end: Callable[[], None]) -> None:
        self._path = path
        self._wal = file_identity.WriteAheadLog(path, lock)
        self._lock = lock
        self._time = time
        self._at_end = at_end
        self._queue: SimpleQueue[Operation | Watch | Signal] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._next: deque[Operation] = deque()
        self._commits = 0
        self._thread = threading.Thread(target=self._serve, name=f"durabus-writer:{path.name}", daemon=True)
        self._lock_wait = WriteLockWait(lock, self._take_queued)
        self.step = threading.RLock()
        """Held while the connection is used: see ``database_file._before_fork``."""
        self._connection: sqlite3.Connection
        self._identity: Identity
        self._wakeup: SQLiteWakeup

    @property
    def commits(self) -> int:
        """Number of committed transactions."""
        return self._commits

    def start(self, connection: sqlite3.Connection, identity: Identity) -> None:
        """Start the thread."""
        self._connection = connection
        self._identity = identity
        self._wakeup = SQLiteWakeup(connection, inotify(self._wal.path, lambda: self._queue.put(NOTICED)))
        self._thread.start()

    def submit(self, operation: Operation | Watch) -> None:
        """Queue a call from any event loop."""
        with self._gate:
            if self._closed:
                raise StoreClosedError(f"the store on {self._path} is closed")
            self._queue.put(operation)

    def stop(self) -> bool:
        """Finish the accepted calls, then end the thread. Blocks; safe to call twice.

        Returns False if the thread waits for a frozen holder of the write lock: it ends when it gets the lock.
        """
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(STOP)
        while self._thread.is_alive():
            if self._lock_wait.frozen:
                return False
            self._thread.join(_LOOK_AT_LOCK_EVERY)
        return True

    def _serve(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  (a bug; no caller may wait for ever because of it)
            self._refuse_all(error)
        finally:
            self._lock_wait.close()
            self._wakeup.wake_all()
            self._at_end()

    def _work(self) -> None:
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
            with self.step:
                self._look_around(watches, has_written=bool(operations))

    def _look_around(self, watches: list[Watch], *, has_written: bool) -> None:
        for watch in watches:
            with contextlib.suppress(sqlite3.Error):  # a lost hint does no harm; the next write reports the error
                self._wakeup.watch(watch, self._time.now())
        with contextlib.suppress(sqlite3.Error):
            if self._wakeup.anybody and (has_written or self._wakeup.look_again_in() == 0):
                self._wakeup.look(self._time.now())
        if self._wal.too_large:
            self._wal.shrink(self._connection)

    def _refuse_all(self, error: Exception) -> None:
        """Fail every call until the store is closed."""
        item: Operation | Watch | Signal | None = None
        while item is not STOP:
            item = self._queue.get()
            if isinstance(item, Signal):
                continue
            item.error = StoreUnavailableError(
                f"{self._path}: the writing thread broke down ({error!r}): close this store, open a new one, and "
                "report this. Nothing was written"
            )
            item.error.__cause__ = error
            deliver([item])

    def _next_group(self) -> tuple[list[Operation | Watch], bool]:
        """Return all queued calls, and whether the writer goes on. Sleeps while the queue is empty."""
        timeout = None
        if self._wakeup.anybody:
            timeout = self._wakeup.look_again_in()
        elif self._wal.too_large:
            timeout = file_identity.SHRINK_EVERY
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
        """Run all calls in one transaction. If one of them causes an error, run each in its own."""
        tx = None
        try:
            tx = self._transact(operations)
        except sqlite3.Error as error:
            if len(operations) > 1 and not is_about_the_disk(error):
                self._write_each(operations)
                return
            if primary_code(error) == sqlite3.SQLITE_BUSY:
                # the calls queued meanwhile would wait as long again, one group after the other
                operations = [*operations, *self._take_queued()]
            for operation in operations:
                operation.error = store_error(error, self._path)
                operation.error.__cause__ = error
        except StoreUnavailableError as error:  # the files are wrong: all calls fail, none is repeated
            for operation in operations:
                operation.error = StoreUnavailableError(str(error))
                operation.error.__cause__ = error
        except Exception as error:  # noqa: BLE001  (one caller's bad value, or a bug)
            if len(operations) > 1:
                self._write_each(operations)
                return
            operations[0].error = error
        deliver(operations)
        if tx is not None:
            self._wakeup.committed(tx)
            self._wal.committed(self._commits)

    def _write_each(self, operations: Sequence[Operation]) -> None:
        self._next.extend(operations)
        while self._next:
            operation = self._next.popleft()
            operation.error = None
            self._write([operation])

    def _transact(self, operations: list[Operation]) -> Transaction:
        operations = self._lock_wait.wait(operations)
        try:
            with self.step:
                return self._commit(operations)
        finally:
            self._lock_wait.end()

    def _commit(self, operations: list[Operation]) -> Transaction:
        connection = self._connection
        try:
            self._identity.check()
            connection.execute("BEGIN IMMEDIATE")
            tx = Transaction(connection, self._time.now_of_all(self._lock))
            _run(tx, operations)
            connection.execute("COMMIT")
            self._identity.check_committed()
            self._commits += 1
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return tx

    def _take_queued(self) -> list[Operation]:
        """Return the calls that have not begun. The writer calls this, or the second thread while the writer waits."""
        taken = list(self._next)
        self._next.clear()
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
    """Add neighbouring publishes as one batch. Returns the index after them."""
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
