"""The PostgreSQL store keeps the contract on the server that the distribution ships, too: another version, jit on.

Here the connections are those of a service that has run for long: one after the other, the tests' stores use the same
ones, whose statements the server has planned already. The tests on the embedded server have new ones each.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.conformance.postgresql_store import (
    BLOCKS,
    SETTINGS,
    OnPostgreSQL,
    Place,
    answer_random_commands_as_memory_does,
    kept_connections,
    place_on,
)
from tests.servers.presence import distribution


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    yield from place_on(distribution(**SETTINGS))


@pytest.fixture(scope="module", autouse=True)
async def _kept(place: Place) -> AsyncIterator[None]:
    async with kept_connections():
        yield


class TestDistributionPostgreSQLStore(OnPostgreSQL):
    @pytest.fixture(scope="module")
    @classmethod
    def anyio_backend(cls) -> str:
        """For the whole module, because a connection belongs to one event loop."""
        return "asyncio"


@pytest.mark.parametrize("block", range(BLOCKS))
async def test_the_distributions_server_answers_random_commands_as_memory_does(block: int, place: Place) -> None:
    await answer_random_commands_as_memory_does(block, place)
