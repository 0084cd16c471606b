"""The database file while it is open: its locks, two connections, two threads, and the attempt to open it."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from durabus.errors import StoreClosedError, StoreUnavailableError
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import (
    Operation,
    Transaction,
    connect_reader,
    connect_writer,
    deliver,
    preparing,
    store_error,
    wait_for_others,
)
from durabus.stores.sqlite.file_identity import ADVICE, Identity, came_alone, is_from_open_store, refuse_second_name
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT, Presence, StoreTime, WriteLock
from durabus.stores.sqlite.writer import Writer

logger = logging.getLogger("durabus.sqlite")

_FORK_WAITS = 1.0
"""Maximum seconds that a ``fork()`` waits for each step of SQLite."""
_LOOK_AFTER = 1_000_000
"""Steps of SQLite's virtual machine, about ten milliseconds, after which a cancelled search ends."""


class SQLiteReader:
    """The reader thread. Runs read calls one by one; a call sees every commit that returned before the call began.

    Its snapshots neither wait for writers nor block them.
    """

    def __init__(self, path: Path, time: StoreTime) -> None:
        self._path = path
        self._time = time
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"durabus-reader:{path.name}", daemon=True)
        self.step = threading.RLock()
        """Held while the connection is used: see ``_before_fork``."""
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


class OpenFile:
    """An open database file: its write lock, its connections, its writer and its reader."""

    def __init__(self, address: SQLiteAddress, time: StoreTime, given_up: threading.Event) -> None:
        self._path = address.path
        self.connections: list[sqlite3.Connection] = []
        self.lock = WriteLock(self._path)
        self.presence = Presence(self._path)
        self.writer = Writer(self._path, self.lock, time, self._let_go)
        self.reader = SQLiteReader(self._path, time)
        alone = came_alone(self._path)
        self.lock.open()
        _OPEN.add(self)
        try:
            self._take_lock(given_up)
            try:
                with self.writer.step:
                    if alone and is_from_open_store(self._path):
                        logger.warning("%s: %s", self._path, ADVICE)
                    self.identity = self._connect(address, time)
            finally:
                self.lock.release()
            self.reader.start(self.connections[1], self.identity)
            self.writer.start(self.connections[0], self.identity)
        except BaseException as error:
            self.reader.stop()
            self._let_go()
            if isinstance(error, sqlite3.Error):
                raise store_error(error, self._path) from error
            raise

    def close(self) -> None:
        """Finish the accepted calls and close the file. Blocks; safe to call twice, and from several threads at once.

        Nothing can interrupt a writer that waits for the lock of a frozen process. The waiting calls and this one
        raise after the timeout; the writer closes the file when it gets the lock at last.
        """
        self.reader.stop()
        if not self.writer.stop():
            raise self.lock.refusal()

    def _take_lock(self, given_up: threading.Event) -> None:
        if not self.lock.acquire_within(BUSY_TIMEOUT, given_up):
            if given_up.is_set():
                raise StoreClosedError(f"the store on {self._path} was closed while it was being opened")
            raise self.lock.refusal()

    def _connect(self, address: SQLiteAddress, time: StoreTime) -> Identity:
        if self._path.exists():
            refuse_second_name(self._path)
        with preparing(self._path):
            writer = connect_writer(self._path, synchronous=address.synchronous)
            self.connections.append(writer)
            schema.migrate(writer, self._path, time.now_of_all(self.lock))
        schema.verify(writer, self._path)
        self.connections.append(connect_reader(self._path))
        for connection in self.connections:
            wait_for_others(connection, BUSY_TIMEOUT)
        self.presence.take()
        refuse_second_name(self._path)
        return Identity(self._path)

    def _let_go(self) -> None:
        """Close the connections, under the write lock if possible: the last one runs a checkpoint as it closes.

        If a frozen process holds the lock, it has the file open too, so this connection is not the last.
        """
        try:
            held = bool(self.connections) and self.lock.acquire_within(BUSY_TIMEOUT, threading.Event())
        except StoreUnavailableError:  # the folder is gone, so no other process can reach the file
            held = False
        with self.writer.step:
            self.presence.release()
            while self.connections:
                self.connections.pop().close()
            self.presence.tidy()
        if held:
            self.lock.release()
        self.lock.close()
        _OPEN.discard(self)

    @property
    def steps(self) -> tuple[threading.RLock, ...]:
        """The locks that a thread holds while it uses a connection of this file."""
        return self.writer.step, self.reader.step

    def forget_in_child(self) -> None:
        """Keep inherited connections open in a forked child: closing them would drop locks that the parent needs."""
        for connection in self.connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self.lock.close()


_OPEN: weakref.WeakSet[OpenFile] = weakref.WeakSet()


_stopped = threading.local()


def _before_fork() -> None:
    """Wait until every step of SQLite has ended, and let no new one begin.

    SQLite keeps a table of the locks of this process. A child that is forked in the middle of a transaction would
    inherit locks that nothing in it ever releases: its own stores on that file could not write, or would read without
    a lock.
    """
    _stopped.steps = [step for file in list(_OPEN) for step in file.steps if step.acquire(timeout=_FORK_WAITS)]


def _after_fork_in_parent() -> None:
    for step in _stopped.steps:
        step.release()


def _after_fork_in_child() -> None:
    for file in list(_OPEN):
        file.forget_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class Opening:
    """One attempt to open the file, shared by all callers of ``open()``.

    A cancelled caller leaves. When the last caller has left, the attempt ends and closes the file.
    """

    def __init__(self, attempt: Callable[[threading.Event], OpenFile]) -> None:
        self._attempt = attempt
        self._process = os.getpid()
        self._gate = threading.Lock()
        self._wanted = 1
        self._given_up = threading.Event()
        self._done: Future[OpenFile] = Future()
        self._done.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, name="durabus-opening", daemon=True)
        self._thread.start()

    def join(self) -> bool:
        """Add a caller. Returns False if the attempt has failed, was given up, or belongs to the parent process."""
        if self._process != os.getpid():
            return False
        with self._gate:
            if self._given_up.is_set() or (self._done.done() and self._done.exception()):
                return False
            self._wanted += 1
            return True

    async def wait(self) -> OpenFile:
        """Return the open file. Every caller that began or joined the attempt awaits this."""
        try:
            return await asyncio.wrap_future(self._done)
        except asyncio.CancelledError:
            self._leave()
            raise

    def close(self) -> None:
        """Give up the attempt, or close the open file. Blocks; safe to call twice, and from several threads at once."""
        if self._process != os.getpid():
            return
        with self._gate:
            self._given_up.set()
        self._thread.join()
        if self._done.exception() is None:
            self._done.result().close()

    def _leave(self) -> None:
        with self._gate:
            self._wanted -= 1
            if self._wanted:
                return
            self._given_up.set()
        threading.Thread(target=self.close, name="durabus-closing", daemon=True).start()

    def _run(self) -> None:
        try:
            file = self._attempt(self._given_up)
        except BaseException as error:  # noqa: BLE001  (the waiting callers get it)
            self._done.set_exception(error)
            return
        with self._gate:
            if not self._given_up.is_set():
                self._done.set_result(file)
                return
        file.close()
        self._done.set_exception(StoreClosedError("the store was closed while it was being opened: open a new one"))
