"""The Kafka store keeps the contract, on a real broker."""

from pathlib import Path
from zlib import crc32

import pytest
from confluent_kafka.admin import AdminClient

from durabus.clock import ManualClock
from durabus.conformance import StoreConformance
from durabus.store.connect import open_store
from durabus.store.contract import EventStore


def prefix(place: Path) -> str:
    return f"t{crc32(str(place).encode())}"


@pytest.fixture(scope="module")
def admin(kafka_url: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_url.removeprefix("kafka://")})


class TestKafkaStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_url: str, admin: AdminClient) -> None:
        self.url = kafka_url
        self.admin = admin

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(f"{self.url}?prefix={prefix(place)}")

    async def forget(self, place: Path) -> None:
        # Not waited for: nobody uses the names again, and the broker takes its time.
        self.admin.delete_topics([f"{prefix(place)}.control", f"events.{prefix(place)}"])
