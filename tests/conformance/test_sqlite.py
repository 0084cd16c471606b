"""The SQLite store keeps the contract."""

import sqlite3
from pathlib import Path

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance


class Transaction:
    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(file, isolation_level=None)
        self.connection.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        self.connection.execute("ROLLBACK")

    async def close(self) -> None:
        self.connection.close()


class TestSQLiteStore(StoreConformance):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(f"sqlite:///{place}/conformance.db", clock=clock)

    async def begin(self, place: Path) -> Transaction:
        return Transaction(place / "conformance.db")
