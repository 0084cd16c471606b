"""The SQLite store on a real file, its two threads replaced: each call runs at once, when it is delivered.

This leaves out what those threads add: commits shared by many calls, the wait for the lock of other processes, and
wake-ups by the kernel. These have tests of their own.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Container
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.connection import Operation, deliver
from durabus.stores.sqlite.database_file import OpenFile, SQLiteReader
from durabus.stores.sqlite.file_identity import Identity
from durabus.stores.sqlite.store import SQLiteStore
from durabus.stores.sqlite.wakeup import SQLiteWakeup
from durabus.stores.sqlite.writer import Writer
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.places import ServerPlace
from durabus.testing.simulation.scenario import Scenario
from durabus.testing.simulation.world import WorldClock

MEMORY_DISK = Path("/dev/shm")  # noqa: S108  (where there is one: every commit is synced)
HINT_EVERY = 0.3


class Everything(Container[str]):
    """Contains every verb, so that a task runs each call: even an immediate reply comes through the loop."""

    def __contains__(self, verb: object) -> bool:
        return True


def start_writer(self: Writer, connection: sqlite3.Connection, identity: Identity) -> None:
    self._connection, self._identity = connection, identity
    self._wakeup = SQLiteWakeup(connection, None)


def start_reader(self: SQLiteReader, connection: sqlite3.Connection, identity: Identity) -> None:
    self._connection, self._identity = connection, identity


def write_now(self: Writer, operation: Operation) -> None:
    self._write([operation])


def read_now(self: SQLiteReader, operation: Operation) -> None:
    self._read(operation)
    deliver([operation])


class InlineStore(SQLiteStore):
    """A SQLite store that opens without a thread."""

    def __init__(self, address: SQLiteAddress, clock: WorldClock) -> None:
        super().__init__(address, clock)
        with patch.object(Writer, "start", start_writer), patch.object(SQLiteReader, "start", start_reader):
            self._file = OpenFile(self._address, self._time, threading.Event())
        self._process = os.getpid()

    async def open(self) -> None:
        pass

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        await asyncio.sleep(min(timeout, HINT_EVERY))
        return timeout > HINT_EVERY


class SQLitePlace(ServerPlace):
    def __init__(self, loop: VirtualLoop, scenario: Scenario) -> None:
        self._folder = TemporaryDirectory(prefix="durabus-", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
        self._patches = (patch.object(Writer, "submit", write_now), patch.object(SQLiteReader, "submit", read_now))
        for one in self._patches:
            one.start()
        self._store = InlineStore(SQLiteAddress(path=Path(self._folder.name, "bus.db")), WorldClock(loop))
        super().__init__(self._store, loop, scenario, waits=Everything())

    def close(self) -> None:
        for one in self._patches:
            one.stop()
        self._store._file._let_go()
        self._folder.cleanup()
