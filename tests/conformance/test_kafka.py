"""The Kafka store keeps the contract, and answers every command as the memory store does, on a real broker."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from tests.conformance.test_differential import STEPS, compare_with_memory

from durabus.backends.kafka.driver import QUIET
from durabus.backends.kafka.layout import KEPT, LARGEST, ROOM, Layout
from durabus.backends.kafka.store import place as place_of
from durabus.backends.kafka.topics import Topics
from durabus.clock import ManualClock
from durabus.conformance import StoreConformance
from durabus.conformance.differential import random_steps
from durabus.store.connect import open_store
from durabus.store.contract import EventStore

SEQUENCES_PER_TEST = 5
PREFIXES_AT_ONCE = 25


class Prefixes:
    """Their topics are there already: to make fifty at once takes hardly longer than to make two."""

    def __init__(self, url: str) -> None:
        client = place_of(url).client
        self._topics = Topics(client, Layout("conformance"), replication=-1, timeout=60.0)
        self._admin = AdminClient({**client, **QUIET})
        self._fresh: list[str] = []
        self._used: list[str] = []

    def take(self) -> str:
        """One that no test had before."""
        if not self._fresh:
            self._change()
        self._used.append(self._fresh.pop())
        return self._used[-1]

    def _change(self) -> None:
        if self._used:
            # Not waited for: nobody uses the names again, and the broker takes its time.
            self._admin.delete_topics([name for prefix in self._used for name in lanes(prefix)])
            self._used.clear()
        self._fresh = [f"t{uuid4().hex}" for _ in range(PREFIXES_AT_ONCE)]
        settings = {**KEPT, "max.message.bytes": str(LARGEST + ROOM)}
        self._topics.make({name: settings for prefix in self._fresh for name in lanes(prefix)})


def lanes(prefix: str) -> tuple[str, str]:
    return Layout(prefix).control, Layout(prefix).public


@pytest.fixture(scope="module")
def prefixes(kafka_url: str) -> Prefixes:
    return Prefixes(kafka_url)


class TestKafkaStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_url: str, prefixes: Prefixes) -> None:
        self.url = f"{kafka_url}?prefix={prefixes.take()}"

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(self.url, clock=clock)


@pytest.mark.parametrize("block", range(2))
async def test_kafka_answers_random_commands_as_memory_does(block: int, kafka_url: str) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        try:
            await compare_with_memory(f"{kafka_url}?prefix={uuid4().hex}", random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
