"""A change of an event and its entry in the log are one commit."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.atomicity import STEPS, picture_of, set_the_stage

from durabus import EventStore, ManualClock, StoreError, open_store


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[EventStore]:
    store = await open_store(f"sqlite:///{tmp_path / 'bus.db'}", clock=clock)
    yield store
    await store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("action", STEPS)
async def test_a_change_does_not_happen_if_its_entry_cannot_be_written(
    action: str, store: EventStore, clock: ManualClock, tmp_path: Path
) -> None:
    stage = await set_the_stage(store)
    if action == "ABANDONED":
        clock.advance(stage.lease)
    before = await picture_of(store)
    refuse = "BEFORE INSERT ON event_log WHEN NEW.action = '{}' BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with closing(sqlite3.connect(tmp_path / "bus.db")) as connection:
        connection.execute(f"CREATE TRIGGER refusing {refuse.format(action)}")
    with pytest.raises(StoreError):
        await STEPS[action](store, stage)
    assert await picture_of(store) == before
    with closing(sqlite3.connect(tmp_path / "bus.db")) as connection:
        connection.execute("DROP TRIGGER refusing")
    await STEPS[action](store, stage)
    assert await picture_of(store) != before
