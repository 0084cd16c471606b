"""A store on a schema of its own, in a real server that waits for its disk."""

import secrets
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from durabus.stores.postgresql.store import PostgreSQLStore


@pytest.fixture
def schema(postgresql_url: str) -> Iterator[str]:
    name = f"test_{secrets.token_hex(4)}"
    yield name
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def url(postgresql_url: str, schema: str) -> str:
    return f"{postgresql_url}?schema={schema}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgreSQLStore]:
    opened = PostgreSQLStore.from_url(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def admin(postgresql_url: str, store: PostgreSQLStore, schema: str) -> Iterator[psycopg.Connection]:
    """A connection of an administrator with a SQL prompt, in our schema."""
    with psycopg.connect(postgresql_url, autocommit=True, options=f"-c search_path={schema}") as connection:
        yield connection
