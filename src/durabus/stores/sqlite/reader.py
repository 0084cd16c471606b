"""The reader thread of a store object. Its snapshots neither wait for writers nor block them."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from queue import SimpleQueue

from durabus.errors import StoreClosedError
from durabus.stores.sqlite.connection import Operation, Transaction, deliver, store_error
from durabus.stores.sqlite.file_identity import Identity
from durabus.stores.sqlite.store_time import StoreTime

_LOOK_AFTER = 1_000_000
"""Steps of SQLite's virtual machine, about ten milliseconds, after which a cancelled search ends."""


class SQLiteReader:
    """Runs read calls one by one. A call sees every commit that returned before the call began."""

    def __init__(self, path: Path, time: StoreTime) -> None:
        self._path = path
        self._time = time
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"durabus-reader:{path.name}", daemon=True)
        self.step = threading.RLock()
        """Held while the connection is used: see ``database_file._before_fork``."""
        self._connection: sqlite3.Connection
        self._identity: Identity

    def start(self, connection: sqlite3.Connection, identity: Identity) -> None:
        """Start the thread."""
        self._connection = connection
        self._identity = identity
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Queue a call from any event loop."""
        with self._gate:
            if self._closed:
                raise StoreClosedError(f"the store on {self._path} is closed")
            self._queue.put(operation)

    def stop(self) -> None:
        """Finish the accepted calls, then end the thread. Blocks; safe to call twice."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        while (operation := self._queue.get()) is not None:
            if not operation.future.done():
                with self.step:
                    self._read(operation)
                deliver([operation])

    def _read(self, operation: Operation) -> None:
        run = operation.run
        if run is None:
            return
        try:
            self._identity.check()
            self._connection.execute("BEGIN")
            try:
                self._connection.set_progress_handler(operation.future.cancelled, _LOOK_AFTER)
                operation.result = run(Transaction(self._connection, self._time.now()))
            finally:
                self._connection.set_progress_handler(None, 0)
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            operation.error = store_error(error, self._path)
            operation.error.__cause__ = error
        except Exception as error:  # noqa: BLE001  (the caller gets it)
            operation.error = error
