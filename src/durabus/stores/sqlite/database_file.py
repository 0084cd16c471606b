"""The file while it is open: the locks, two connections, two threads."""

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

from durabus.errors import StoreClosedError, StoreUnavailableError
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import connect_reader, connect_writer, preparing, store_error, wait_for_others
from durabus.stores.sqlite.file_identity import ADVICE, Identity, came_alone, is_from_open_store, refuse_second_name
from durabus.stores.sqlite.file_locks import BUSY_TIMEOUT, Presence, WriteLock
from durabus.stores.sqlite.reader import SQLiteReader
from durabus.stores.sqlite.store_time import StoreTime
from durabus.stores.sqlite.writer import Writer

logger = logging.getLogger("durabus.sqlite")

_FORK_WAITS = 1.0
"""Seconds that a ``fork()`` waits for each step of SQLite at most."""


class OpenFile:
    """Made by one attempt to open, ended by one close."""

    def __init__(self, address: SQLiteAddress, time: StoreTime, given_up: threading.Event) -> None:
        self._path = address.path
        self.connections: list[sqlite3.Connection] = []
        self.lock = WriteLock(self._path)
        self._presence = Presence(self._path)
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
        """Finish what was accepted and let go. Blocks; safe to call twice, and by several at once.

        A writer that waits for the lock of a frozen process cannot be called back. Those who wait for it get an error
        in time, and so does this call; it lets go of everything when it gets the lock at last.
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
        self._presence.take()
        refuse_second_name(self._path)
        return Identity(self._path)

    def _let_go(self) -> None:
        """Under the lock if it can be had, because the last connection to a file writes its log back as it closes.

        If a frozen process has it, that one has the file open as well, so this connection is not the last.
        """
        try:
            held = bool(self.connections) and self.lock.acquire_within(BUSY_TIMEOUT, threading.Event())
        except StoreUnavailableError:  # the folder is gone, and with it everybody else's way to the file
            held = False
        with self.writer.step:
            self._presence.release()
            while self.connections:
                self.connections.pop().close()
            self._presence.tidy()
        if held:
            self.lock.release()
        self.lock.close()
        _OPEN.discard(self)

    @property
    def steps(self) -> tuple[threading.RLock, ...]:
        """Held by whoever uses a connection of this file."""
        return self.writer.step, self.reader.step

    def forget_in_child(self) -> None:
        """A forked child must not even close what it inherited: that would drop locks the parent relies on."""
        for connection in self.connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self.lock.close()


_OPEN: weakref.WeakSet[OpenFile] = weakref.WeakSet()


_stopped = threading.local()


def _before_fork() -> None:
    """Let every step of SQLite end, and begin none.

    SQLite keeps a table of the locks of this process. A child that was forked in the middle of a transaction would
    inherit it with locks that nobody there ever releases: its own stores on that file could not write, or would read
    without a lock.
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
    """Whoever is cancelled leaves. When the last one has left, the attempt ends and nothing of it stays behind."""

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
        """Take part as well; False if the attempt has failed, was given up, or is that of this process's parent."""
        if self._process != os.getpid():
            return False
        with self._gate:
            if self._given_up.is_set() or (self._done.done() and self._done.exception()):
                return False
            self._wanted += 1
            return True

    async def wait(self) -> OpenFile:
        """What was opened. For whoever began the attempt, and those who joined."""
        try:
            return await asyncio.wrap_future(self._done)
        except asyncio.CancelledError:
            self._leave()
            raise

    def close(self) -> None:
        """Give up, or close what was opened. Blocks; safe to call twice, and by several at once."""
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
        except BaseException as error:  # noqa: BLE001  (for those who wait)
            self._done.set_exception(error)
            return
        with self._gate:
            if not self._given_up.is_set():
                self._done.set_result(file)
                return
        file.close()
        self._done.set_exception(StoreClosedError("the store was closed while it was being opened: open a new one"))
