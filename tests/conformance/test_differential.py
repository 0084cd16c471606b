"""The SQLite store replies to every command as the memory store does."""

from pathlib import Path

import pytest

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.testing.conformance.differential import SideStep, compare, random_steps

SEQUENCES_PER_TEST = 10
STEPS = 40
BLOCKS = [pytest.param(block, marks=pytest.mark.long if block >= 16 else ()) for block in range(32)]


async def compare_with_memory(url: str, steps: list[SideStep]) -> None:
    clocks = [ManualClock(), ManualClock()]
    memory = await open_store("memory://", clock=clocks[0])
    other = await open_store(url, clock=clocks[1])
    try:
        await compare(memory, other, clocks, steps)
    finally:
        await other.close()
        await memory.close()


@pytest.mark.parametrize("block", BLOCKS)
async def test_sqlite_replies_to_random_commands_as_memory_does(block: int, tmp_path: Path) -> None:
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        try:
            await compare_with_memory(f"sqlite:///{tmp_path}/{seed}.db?synchronous=normal", random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise


async def test_the_same_seed_gives_the_same_commands_and_replies() -> None:
    assert random_steps(7, STEPS) == random_steps(7, STEPS) != random_steps(8, STEPS)
    await compare_with_memory("memory://", random_steps(7, 10 * STEPS))
