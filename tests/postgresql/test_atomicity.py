"""A change of an event and its entry in the log are one commit."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from tests.atomicity import STEPS, picture_of, set_the_stage

from durabus import EventStore, ManualClock, StoreError, open_store

REFUSE = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timed_store(url: str, clock: ManualClock) -> AsyncIterator[EventStore]:
    store = await open_store(url, clock=clock)
    yield store
    await store.close()


@pytest.mark.parametrize("action", STEPS)
async def test_a_change_does_not_happen_if_its_entry_cannot_be_written(
    action: str, timed_store: EventStore, clock: ManualClock, postgresql_url: str, schema: str
) -> None:
    stage = await set_the_stage(timed_store)
    if action == "ABANDONED":
        clock.advance(stage.lease)
    before = await picture_of(timed_store)
    table, when = ("published", "") if action == "PUBLISHED" else ("event_log", f"WHEN (NEW.action = '{action}')")
    with psycopg.connect(postgresql_url, autocommit=True, options=f"-c search_path={schema}") as admin:
        admin.execute(REFUSE)
        admin.execute(f"CREATE TRIGGER refusing BEFORE INSERT ON {table} FOR EACH ROW {when} EXECUTE FUNCTION refuse()")
        with pytest.raises(StoreError, match="refused"):
            await STEPS[action](timed_store, stage)
        assert await picture_of(timed_store) == before
        admin.execute(f"DROP TRIGGER refusing ON {table}")
    await STEPS[action](timed_store, stage)
    assert await picture_of(timed_store) != before
