"""Every behaviour is shown on the store without a disk, on the one with a file, and on the one with a server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.postgresql.emptied import empty

from durabus import EventBus, EventStore, ManualClock, open_store

SCHEMA = "seeds"


@pytest.fixture(autouse=True)
def _impatient_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that fails does not wait half a minute for handlers that will never end; a busy machine has some time."""
    defaults = EventBus.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "shutdown_timeout", 10.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bus.db'}"


@pytest.fixture(scope="session")
def emptier(postgresql_url: str) -> Iterator[psycopg.Connection]:
    """A connection that empties the one schema of these tests: to make one for each would take longer than they do."""
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    return "memory://" if request.param == "memory" else _durable_url(request, sqlite_url)


@pytest.fixture(params=["sqlite", "postgresql"])
def durable_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """A store that outlives the bus that opened it."""
    return _durable_url(request, sqlite_url)


def _durable_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    if request.param == "sqlite":
        return sqlite_url
    empty(request.getfixturevalue("emptier"), SCHEMA)
    return f"{request.getfixturevalue('postgresql_url')}?schema={SCHEMA}"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[EventStore]:
    """A store on the host's clock, for tests with real handlers."""
    store = await open_store(store_url)
    yield store
    await store.close()


@pytest.fixture
async def timed_store(store_url: str, clock: ManualClock) -> AsyncIterator[EventStore]:
    """A store whose time stands still until the test moves it."""
    store = await open_store(store_url, clock=clock)
    yield store
    await store.close()


@pytest.fixture
async def sqlite_store(sqlite_url: str, clock: ManualClock) -> AsyncIterator[EventStore]:
    """The store on disk, for tests that read it with SQL."""
    store = await open_store(sqlite_url, clock=clock)
    yield store
    await store.close()
