"""A store with a prefix of its own, and servers that a test may disturb."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from tests.redis.server import forget_keys, prompt
from tests.servers.presence import installed

from durabus.stores.redis.store import RedisStore
from durabus.testing.servers.redis import RedisServer


@pytest.fixture
def url(redis_url: str) -> Iterator[str]:
    """The URL of a store with a prefix of its own."""
    own = f"{redis_url}?prefix={uuid4().hex}"
    yield own
    forget_keys(own)


@pytest.fixture
async def store(url: str) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def admin(url: str) -> Iterator[redis.Redis]:
    """A connection of an administrator with a prompt."""
    with prompt(url) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that only this test uses."""
    with installed(RedisServer(tmp_path / "server")) as server:
        yield server
