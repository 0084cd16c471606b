"""The same leases by the server's own clock."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.redis.server import forget_keys

from durabus.backends.redis.store import RedisStore
from durabus.clock import ManualClock
from durabus.conformance.expiry import ExpiryTests
from durabus.conformance.modes import ModeTests
from durabus.conformance.suite import StoreUnderTest
from durabus.store.contract import EventStore


@pytest.mark.slow
class TestRedisStoreInRealTime(StoreUnderTest, ExpiryTests, ModeTests):
    @pytest.fixture(autouse=True)
    def server(self, url: str) -> None:
        self.url = url

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = RedisStore.from_url(self.url)
        store.features = replace(store.features, manual_clock=False)
        await store.open()
        return store

    async def forget(self, place: Path) -> None:
        forget_keys(self.url)
