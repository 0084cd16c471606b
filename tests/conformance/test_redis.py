"""The Redis store keeps the contract, and replies to every command as the memory store does."""

from pathlib import Path
from uuid import uuid4

import pytest
from tests.conformance.test_differential import BLOCKS, STEPS, compare_with_memory
from tests.redis.server import forget_keys

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.differential import random_steps

SEQUENCES_PER_TEST = 10


class TestRedisStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = f"{redis_url}?prefix={uuid4().hex}"

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(self.url, clock=clock)

    async def forget(self, place: Path) -> None:
        forget_keys(self.url)


@pytest.mark.parametrize("block", BLOCKS)
async def test_redis_replies_to_random_commands_as_memory_does(block: int, redis_url: str) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        url = f"{redis_url}?prefix={uuid4().hex}"
        try:
            await compare_with_memory(url, random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
        finally:
            forget_keys(url)
