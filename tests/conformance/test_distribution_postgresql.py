"""The PostgreSQL store keeps the contract on the server that the distribution ships, too: another version, jit on."""

from collections.abc import Iterator

import pytest
from tests.conformance.postgresql_store import (
    BLOCKS,
    SETTINGS,
    OnPostgreSQL,
    Place,
    answer_random_commands_as_memory_does,
    place_on,
)
from tests.servers.presence import distribution


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    yield from place_on(distribution(**SETTINGS))


class TestDistributionPostgreSQLStore(OnPostgreSQL):
    pass


@pytest.mark.parametrize("block", range(BLOCKS))
async def test_the_distributions_server_replies_to_random_commands_as_memory_does(block: int, place: Place) -> None:
    await answer_random_commands_as_memory_does(block, place)
