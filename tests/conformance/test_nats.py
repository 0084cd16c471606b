"""The NATS store keeps the contract, on a real server."""

from pathlib import Path
from zlib import crc32

import nats
import pytest
from nats.js.errors import NotFoundError

from durabus.clock import ManualClock
from durabus.conformance import StoreConformance
from durabus.store.connect import open_store
from durabus.store.contract import EventStore


def prefix(place: Path) -> str:
    return f"t{crc32(str(place).encode())}"


class TestNatsStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, nats_url: str) -> None:
        self.url = nats_url

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(f"{self.url}?prefix={prefix(place)}")

    async def forget(self, place: Path) -> None:
        client = await nats.connect(self.url)
        for stream in (prefix(place), f"{prefix(place)}-snapshots"):
            try:
                await client.jetstream().delete_stream(stream)
            except NotFoundError:
                continue
        await client.close()
