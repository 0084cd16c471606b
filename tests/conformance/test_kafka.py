"""The Kafka store keeps the contract, and answers every command as the memory store does, on a real broker."""

from pathlib import Path
from uuid import uuid4
from zlib import crc32

import pytest
from confluent_kafka.admin import AdminClient
from tests.conformance.test_differential import STEPS, compare_with_memory

from durabus.backends.kafka.driver import QUIET
from durabus.clock import ManualClock
from durabus.conformance import StoreConformance
from durabus.conformance.differential import random_steps
from durabus.store.connect import open_store
from durabus.store.contract import EventStore

SEQUENCES_PER_TEST = 5


def prefix(place: Path) -> str:
    return f"t{crc32(str(place).encode())}"


@pytest.fixture(scope="module")
def admin(kafka_url: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_url.removeprefix("kafka://"), **QUIET})


class TestKafkaStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_url: str, admin: AdminClient) -> None:
        self.url = kafka_url
        self.admin = admin

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(f"{self.url}?prefix={prefix(place)}", clock=clock)

    async def forget(self, place: Path) -> None:
        # Not waited for: nobody uses the names again, and the broker takes its time.
        self.admin.delete_topics([f"{prefix(place)}.control", f"events.{prefix(place)}"])


@pytest.mark.parametrize("block", range(2))
async def test_kafka_answers_random_commands_as_memory_does(block: int, kafka_url: str) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        try:
            await compare_with_memory(f"{kafka_url}?prefix={uuid4().hex}", random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
