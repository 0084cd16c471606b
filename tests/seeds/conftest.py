"""Every behaviour is shown on the store without a disk and on the one with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from durabus import EventBus, EventStore, ManualClock, open_store


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


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    return "memory://" if request.param == "memory" else sqlite_url


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
    """The store on disk, for what is seen with SQL."""
    store = await open_store(sqlite_url, clock=clock)
    yield store
    await store.close()
