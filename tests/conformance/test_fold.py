"""The fold of a log keeps the contract, and answers every command as the memory store does, on a log in memory."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.conformance.test_differential import SEQUENCES_PER_TEST, STEPS
from tests.fold.simulated_log import SimulatedLog
from tests.fold.simulated_store import simulated_store

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.differential import compare, random_steps


class TestFoldStore(StoreConformance):
    logs: ClassVar[dict[Path, SimulatedLog]] = {}

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = simulated_store(self.logs.setdefault(place, SimulatedLog(clock)), clock=clock)
        await store.open()
        return store

    async def forget(self, place: Path) -> None:
        del self.logs[place]


@pytest.mark.parametrize("block", range(8))
async def test_the_fold_answers_random_commands_as_memory_does(block: int) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        clocks = [ManualClock(), ManualClock()]
        memory = await open_store("memory://", clock=clocks[0])
        folded = simulated_store(SimulatedLog(clocks[1]), clock=clocks[1])
        await folded.open()
        try:
            await compare(memory, folded, clocks, random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
        finally:
            await folded.close()
            await memory.close()
