"""The stores that the runtime is shown on, and buses on them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.places import EVERYWHERE, fresh_url

from durabus import EventBus, EventStore, open_store

MakeBus = Callable[..., EventBus]


@pytest.fixture(params=EVERYWHERE)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, request, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
async def make_bus(store: EventStore) -> AsyncIterator[MakeBus]:
    """Return a function that makes buses on one store. Each is a node of its own; all are shut down at the end."""
    async with AsyncExitStack() as stack:

        def make(**options: Any) -> EventBus:
            bus = EventBus(store, **{"retry": {"max_retries": 0}, "poll_interval": 0.05, **options})
            stack.push_async_callback(bus.shutdown, 1.0)
            return bus

        yield make
