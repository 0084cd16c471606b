"""The verification: no entry leaves the store's log before the pipeline has compared its copy."""

import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History

from durabus import EventStore
from durabus.errors import PipelineError
from durabus.pipeline.archive import Archive
from durabus.pipeline.lake import Lake, archived_trail
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import READER, trim, verify
from durabus.store.log import START


async def test_only_what_was_verified_is_trimmed(
    lake: Lake, session: StoreSession, store: EventStore, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.pipeline.verification.ROWS_PER_PAGE", 5)  # the first time by tasks, then without
    with pytest.raises(PipelineError, match="nothing of this store's log was verified yet"):
        await trim(store)
    await history.varied()
    Archive(lake, session).run()
    archived = await store.log_lag(START)
    with pytest.raises(PipelineError, match="nothing of this store's log was verified yet"):
        await trim(store)
    done = verify(lake, session)
    assert (done.rows, done.position) == (archived, await store.log_head())
    assert await store.read_position(READER) == done.position
    late = await history.completed("order.late", bus="other")
    trails = {entry.id for entry in (await store.read_log()).entries if entry.status == "COMPLETED"} - {late.id}
    assert await trim(store) > 0
    left = {entry.id for entry in (await store.read_log()).entries}
    assert not left & trails
    assert late.id in left
    assert (await store.counts()).failed == 2

    Archive(lake, session).run()
    assert verify(lake, session).rows == 3
    assert verify(lake, session).rows == 0
    assert await trim(store) == 3
    assert lake.value("bronze.event_log", "count(*)") == archived + 3
    trail = archived_trail(lake, late.event_id)
    assert [entry["action"] for entry in trail.rows] == ["PUBLISHED", "PICKED", "COMPLETED"]
    assert archived_trail(lake, late.id) == trail
    assert archived_trail(lake, 4711).rows == []


async def test_a_copy_that_differs_is_not_verified(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    await history.varied()
    Archive(lake, session).run()
    database = sqlite3.connect(tmp_path / "bus.db")
    with database:
        database.execute("UPDATE event_log SET error = 'changed by hand' WHERE position = 6")
    database.close()
    with pytest.raises(PipelineError, match="the lake differs from the log between positions START and"):
        verify(lake, session)
    assert await store.read_position(READER) == START
    with pytest.raises(PipelineError, match="verified"):
        await trim(store)


@pytest.mark.long
async def test_a_lake_that_lacks_what_was_verified_is_refused(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    await history.completed()
    Archive(lake, session).run()
    verify(lake, session)
    other = Lake(lake.spark, tmp_path / "other")
    other.overwrite(lake.read("bronze.event_log").where(F.col("seq") < 2), "bronze.event_log")
    with pytest.raises(PipelineError, match="it is another lake"):
        verify(other, session)
