"""The NATS store keeps the contract, and replies to every command as the memory store does, on a real server."""

from pathlib import Path
from uuid import uuid4

import nats
import pytest
from nats.js.errors import NotFoundError
from tests.conformance.test_differential import STEPS, compare_with_memory

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.differential import random_steps

SEQUENCES_PER_TEST = 5


class TestNatsStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, nats_url: str) -> None:
        self.url = nats_url
        self.prefix = f"t{uuid4().hex}"

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(f"{self.url}?prefix={self.prefix}", clock=clock)

    async def forget(self, place: Path) -> None:
        client = await nats.connect(self.url)
        for stream in (self.prefix, f"{self.prefix}-snapshots"):
            try:
                await client.jetstream().delete_stream(stream)
            except NotFoundError:
                continue
        await client.close()


@pytest.mark.parametrize("block", range(4))
async def test_nats_replies_to_random_commands_as_memory_does(block: int, nats_url: str) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        try:
            await compare_with_memory(f"{nats_url}?prefix={uuid4().hex}", random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
