"""The Kafka store keeps the contract, and replies to every command as the memory store does, on a real broker."""

from pathlib import Path
from uuid import uuid4

import pytest
from tests.conformance.test_differential import STEPS, compare_with_memory
from tests.kafka.prefixes import Prefixes

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.differential import random_steps

SEQUENCES_PER_TEST = 5


class TestKafkaStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_url: str, kafka_prefixes: Prefixes) -> None:
        self.url = f"{kafka_url}?prefix={kafka_prefixes.take()}"

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(self.url, clock=clock)


@pytest.mark.parametrize("block", range(2))
async def test_kafka_replies_to_random_commands_as_memory_does(block: int, kafka_url: str) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        try:
            await compare_with_memory(f"{kafka_url}?prefix={uuid4().hex}", random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
