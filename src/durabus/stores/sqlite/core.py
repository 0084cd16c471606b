"""What all parts of the store share: the file, the clock, the check that it is open, and calls to its threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from durabus.clock import Clock
from durabus.errors import StoreClosedError
from durabus.store.features import Features
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.address import SQLiteAddress
from durabus.stores.sqlite.caller import run_in_transaction_of
from durabus.stores.sqlite.connection import Operation, Transaction, Watch, check_version
from durabus.stores.sqlite.database_file import OpenFile, Opening
from durabus.stores.sqlite.store_time import StoreTime

T = TypeVar("T")

_CLOSED = -1


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
