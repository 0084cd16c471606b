"""The memory store keeps the contract."""

from pathlib import Path

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store("memory://", clock=clock)
