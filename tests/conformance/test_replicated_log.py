"""The replicated log keeps the contract and replies to commands as the memory store does, on a log in memory."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.conformance.test_differential import SEQUENCES_PER_TEST, STEPS
from tests.replicated_log.simulated_log import SimulatedLog
from tests.replicated_log.simulated_store import simulated_store

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.differential import compare, random_steps


class TestReplicatedLogStore(StoreConformance):
    logs: ClassVar[dict[Path, SimulatedLog]] = {}

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = simulated_store(self.logs.setdefault(place, SimulatedLog(clock)), clock=clock)
        await store.open()
        return store

    async def forget(self, place: Path) -> None:
        del self.logs[place]


@pytest.mark.parametrize("block", range(8))
async def test_the_replicated_log_replies_to_random_commands_as_memory_does(block: int) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        clocks = [ManualClock(), ManualClock()]
        memory = await open_store("memory://", clock=clocks[0])
        replicated = simulated_store(SimulatedLog(clocks[1]), clock=clocks[1])
        await replicated.open()
        try:
            await compare(memory, replicated, clocks, random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
        finally:
            await replicated.close()
            await memory.close()
