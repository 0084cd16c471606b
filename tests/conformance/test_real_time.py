"""The suite can wait in real time for stores that judge leases by a server's clock."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from durabus.backends.memory.store import MemoryStore
from durabus.clock import ManualClock
from durabus.conformance.expiry import ExpiryTests
from durabus.conformance.suite import StoreUnderTest
from durabus.store.contract import EventStore


@pytest.mark.slow
class TestMemoryStoreInRealTime(StoreUnderTest, ExpiryTests):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = MemoryStore()
        store.features = replace(store.features, manual_clock=False)
        await store.open()
        return store
