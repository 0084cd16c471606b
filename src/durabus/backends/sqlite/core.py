"""What all parts of the store share: the file, the two threads, the clock, and the guard at the door."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sqlite3
import weakref
from collections.abc import Callable
from typing import TypeVar

from durabus.backends.sqlite import schema
from durabus.backends.sqlite.address import Address
from durabus.backends.sqlite.connection import check_version, connect_reader, connect_writer, store_error
from durabus.backends.sqlite.flock import WriteLock
from durabus.backends.sqlite.operation import Operation, Watch
from durabus.backends.sqlite.reader import Reader
from durabus.backends.sqlite.transaction import Transaction
from durabus.backends.sqlite.writer import Writer
from durabus.clock import Clock, SystemClock
from durabus.errors import StoreClosedError, StoreUnavailableError
from durabus.store.features import Features

T = TypeVar("T")

_CLOSED = -1


class SQLiteCore:
    """Opening, closing, and the way of a call to the writing or the reading thread."""

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self._address = address
        self._path = address.path.resolve()
        self._clock = clock or SystemClock()
        self._latest = 0.0
        self._process = 0
        self._lock = WriteLock(self._path)
        self._writer = Writer(self._path, self._lock, self._now)
        self._reader = Reader(self._path, self._now)
        self._connections: list[sqlite3.Connection] = []
        self.features = Features(
            scheme="sqlite",
            survives_process_kill=True,
            survives_power_loss=address.synchronous == "full",
            shared_between_processes=True,
            caller_transactions=True,
            manual_clock=True,
        )

    async def open(self) -> None:
        if self._process:
            self._check_open()
            return
        check_version()
        await asyncio.to_thread(self._open)
        self._process = os.getpid()
        _OPEN.add(self)

    async def close(self) -> None:
        if self._process not in (0, _CLOSED):
            self._check_open()
            self._process = _CLOSED
            await asyncio.to_thread(self._close)
        self._process = _CLOSED

    async def verify(self) -> None:
        await self._read(lambda tx: schema.verify(tx.connection, self._path))

    async def now(self) -> float:
        self._check_open()
        return self._now()

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._check_open()
        watch = Watch(bus)
        self._writer.submit(watch)
        try:
            async with asyncio.timeout(timeout):
                return await watch.future
        except TimeoutError:
            return False

    async def _write(self, run: Callable[[Transaction], T]) -> T:
        """Run in the next write transaction; returns when it is committed."""
        self._check_open()
        operation = Operation(run)
        self._writer.submit(operation)
        answer: T = await operation.future
        return answer

    async def _read(self, run: Callable[[Transaction], T]) -> T:
        """Run in a snapshot of its own."""
        self._check_open()
        operation = Operation(run)
        self._reader.submit(operation)
        answer: T = await operation.future
        return answer

    def _now(self) -> float:
        """The clock, never backwards: a lease must not get younger because the host's clock was set back."""
        self._latest = max(self._latest, self._clock.now())
        return self._latest

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

    def _open(self) -> None:
        try:
            self._lock.open()
        except OSError as error:
            raise StoreUnavailableError(
                f"{self._lock.path}: cannot be opened ({error.strerror}): "
                "the folder of the database must exist and be writable for this user"
            ) from error
        try:
            with self._lock.held():
                self._connect()
        except BaseException as error:
            self._let_go()
            if isinstance(error, sqlite3.Error):
                raise store_error(error, self._path) from error
            raise
        self._writer.start(self._connections[0])
        self._reader.start(self._connections[1])

    def _connect(self) -> None:
        writer = connect_writer(self._path, synchronous=self._address.synchronous)
        self._connections.append(writer)
        schema.migrate(writer, self._path, self._now())
        schema.verify(writer, self._path)
        self._connections.append(connect_reader(self._path))

    def _close(self) -> None:
        self._writer.stop()
        self._reader.stop()
        self._let_go()

    def _let_go(self) -> None:
        """Under the lock, because the last connection to a file writes its log back as it closes."""
        with contextlib.suppress(OSError), self._lock.held():
            while self._connections:
                self._connections.pop().close()
        self._lock.close()

    def _forget_in_child(self) -> None:
        """A forked child must not even close what it inherited: that would drop locks the parent relies on."""
        for connection in self._connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._lock.close()


_OPEN: weakref.WeakSet[SQLiteCore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_OPEN):
        store._forget_in_child()  # noqa: SLF001  (this module's own class)


os.register_at_fork(after_in_child=_after_fork_in_child)
