"""The PostgreSQL store keeps the contract."""

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
from tests.servers.presence import installed

from durabus.testing.servers.postgresql import PostgreSQLServer


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    yield from place_on(installed(PostgreSQLServer(settings=SETTINGS)))


class TestPostgreSQLStore(OnPostgreSQL):
    pass


@pytest.mark.parametrize("block", range(BLOCKS))
async def test_postgresql_replies_to_random_commands_as_memory_does(block: int, place: Place) -> None:
    await answer_random_commands_as_memory_does(block, place)
