"""Opens PostgreSQL stores for the conformance suite, on a real server.

That server does not wait for its disk and does not vacuum by itself: what a power cut would leave is no question here,
and a vacuum that starts by chance would hold back the log. Each test gets the same schema, emptied.

The connections are those of a service that has run for long: one after the other, the tests' stores use the same ones,
because the server plans every statement anew for a new one, which takes longer than most tests. The random commands,
and the tests outside this folder, have new ones.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgresql.emptied import empty

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.stores.postgresql import core
from durabus.stores.postgresql.connection import Connection, Pool, let_go
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.differential import compare, random_steps
from durabus.testing.servers.postgresql import PostgreSQLServer

SCHEMA = "conformance"
OTHERS_AT_WORK = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_xid IS NOT NULL"
SCRAM_ITERATIONS_SINCE = 160000
BLOCKS = 4
SEQUENCES_PER_TEST = 5
STEPS = 40
SETTINGS = {"fsync": "off", "autovacuum": "off"}


class Place:
    """The schema of all tests, and a connection that empties it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store_url = f"{url}?schema={SCHEMA}"
        self.connection = psycopg.connect(url, autocommit=True)

    def make_logins_cheap(self) -> None:
        """Make a login cheap: the tests connect thousands of times, and each login would hash the password for long."""
        if self.connection.info.server_version >= SCRAM_ITERATIONS_SINCE:
            password = urlsplit(self.url).password
            self.connection.execute("SET scram_iterations = 1")
            self.connection.execute(f"ALTER USER postgres PASSWORD '{password}'")

    def empty(self) -> None:
        """Empty the schema once the last test's transactions are over: they would hold back the log of the next one."""
        while self.connection.execute(OTHERS_AT_WORK).fetchone() != (0,):
            time.sleep(0.01)
        empty(self.connection, SCHEMA)


def place_on(server: PostgreSQLServer) -> Iterator[Place]:
    """Yield the place on a server that runs until the context ends."""
    with server:
        made = Place(server.url)
        made.make_logins_cheap()
        yield made
        made.connection.close()


@asynccontextmanager
async def kept_connections() -> AsyncIterator[None]:
    """Let each store reuse the connections that the last one on this event loop left idle."""
    kept: list[Connection] = []
    loop = asyncio.get_running_loop()

    class KeptPool(Pool):
        async def close(self) -> None:
            await self.wait_until_unused()
            if asyncio.get_running_loop() is loop:
                self._open -= len(self._idle)
                kept.extend(self._idle)
                self._idle.clear()
            await super().close()

        async def _connect(self) -> Connection:
            while kept and asyncio.get_running_loop() is loop:
                connection = kept.pop()
                if not connection.is_closed():
                    self._open += 1
                    return connection
            return await super()._connect()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "Pool", KeptPool)
        yield
    for connection in kept:
        await let_go(connection)


class Transaction:
    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()


class OnPostgreSQL(StoreConformance):
    """What the suite asks of its store; a module gives it the fixture ``place``."""

    place: Place

    @pytest.fixture(scope="class")
    @classmethod
    def anyio_backend(cls) -> str:
        """Use one event loop for all tests of the class, because a connection belongs to one."""
        return "asyncio"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    async def _kept(cls, place: Place) -> AsyncIterator[None]:
        async with kept_connections():
            yield

    @pytest.fixture(autouse=True)
    def _server(self, place: Place) -> None:
        type(self).place = place
        place.empty()

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(self.place.store_url, clock=clock)

    async def begin(self, place: Path) -> Transaction:
        return Transaction(self.place.url)


async def answer_random_commands_as_memory_does(block: int, place: Place) -> None:
    """Run a block of random sequences on both stores and compare their replies."""
    for seed in range(block * SEQUENCES_PER_TEST, (block + 1) * SEQUENCES_PER_TEST):
        place.empty()
        clocks = [ManualClock(), ManualClock()]
        memory = await open_store("memory://", clock=clocks[0])
        other = await open_store(place.store_url, clock=clocks[1])
        try:
            await compare(memory, other, clocks, random_steps(seed, STEPS))
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
        finally:
            await other.close()
            await memory.close()
