"""The API in this process, on every store that a single process can have, under a clock that tests move."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.support import ELSEWHERE, Desk

from durabus import EventStore, ManualClock, open_store
from durabus.http import TokenFile
from durabus.http.auth.access import Scope

EARLY = 1_766_571_900.0
"""2025-12-24T10:25:00Z, the earliest instant in the examples of the design document."""
UNTIL_THEY_BEGIN = 300.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(EARLY)


def store_url(name: str, folder: Path) -> str:
    urls = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{folder}/api.db",
        "sharded": f"sharded://memory://|sqlite:///{folder}/1.db|memory://",
    }
    return urls[name]


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[EventStore]:
    opened = await open_store(store_url(request.param, tmp_path), clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def desk(store: EventStore, clock: ManualClock) -> AsyncIterator[Desk]:
    clock.advance(UNTIL_THEY_BEGIN)
    async with Desk(store, clock) as made:
        yield made


@pytest.fixture
def tokens(tmp_path: Path, clock: ManualClock) -> TokenFile:
    file = TokenFile(tmp_path / "tokens.json", clock=clock)
    file.create("first", [Scope.READ])
    return file


@pytest.fixture
async def guarded(store: EventStore, clock: ManualClock, tokens: TokenFile) -> AsyncIterator[Desk]:
    async with Desk(store, clock, tokens=tokens, client=ELSEWHERE, host="bus.example.com") as made:
        yield made
