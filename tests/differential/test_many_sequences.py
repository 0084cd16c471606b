"""The long version of the short runs in tests/conformance: other seeds, on the stores where a sequence is slow."""

from uuid import uuid4

import pytest
from tests.conformance.postgresql_store import SEQUENCES_PER_TEST, Place
from tests.conformance.test_differential import STEPS, compare_with_memory
from tests.conformance.test_postgresql import place

from durabus.testing.conformance.differential import random_steps

__all__ = ["place"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FIRST_SEED = 1000


async def compare_many(url: str, seeds: range) -> None:
    for seed in seeds:
        try:
            await compare_with_memory(url.format(prefix=uuid4().hex), random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("block", range(60))
async def test_postgresql_replies_to_300_sequences_as_memory_does(block: int, place: Place) -> None:
    first = FIRST_SEED + block * SEQUENCES_PER_TEST
    for seed in range(first, first + SEQUENCES_PER_TEST):
        place.empty()
        await compare_many(place.store_url, range(seed, seed + 1))


@pytest.mark.parametrize("block", range(10))
async def test_nats_replies_to_100_sequences_as_memory_does(block: int, nats_url: str) -> None:
    await compare_many(f"{nats_url}?prefix={{prefix}}", range(FIRST_SEED + block * 10, FIRST_SEED + block * 10 + 10))


@pytest.mark.parametrize("block", range(10))
async def test_kafka_replies_to_50_sequences_as_memory_does(block: int, kafka_url: str) -> None:
    await compare_many(f"{kafka_url}?prefix={{prefix}}", range(FIRST_SEED + block * 5, FIRST_SEED + block * 5 + 5))
