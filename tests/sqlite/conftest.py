"""A store on a file of its own."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from durabus.stores.sqlite.store import SQLiteStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bus.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore.from_url(f"sqlite:///{file}")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def admin(store: SQLiteStore, file: Path) -> Iterator[sqlite3.Connection]:
    """A connection of an administrator with a SQL prompt."""
    connection = sqlite3.connect(file, isolation_level=None)
    yield connection
    connection.close()
