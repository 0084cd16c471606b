"""The verification: no entry leaves the store's log before the pipeline has compared its copy."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.pipeline.history import History, history_in

from durabus import EventStore
from durabus.errors import PipelineError
from durabus.pipeline.archive import Archive
from durabus.pipeline.gaps import archive_name, lake_id, read_gaps, trim_unread
from durabus.pipeline.lake import Lake, archived_trail
from durabus.pipeline.report import report
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.status import lake_status
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import forget, trim, verify
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
    assert await store.read_position(archive_name(lake)) == done.position
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
    assert await store.read_position(archive_name(lake)) == START
    with pytest.raises(PipelineError, match="verified"):
        await trim(store)


@pytest.mark.long
async def test_a_lake_that_lacks_what_was_verified_is_refused(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    await history.completed()
    Archive(lake, session).run()
    verify(lake, session)
    bronze = lake.location("bronze.event_log")
    lake.spark.sql(f"ALTER TABLE delta.`{bronze}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    lake.spark.sql(f"DELETE FROM delta.`{bronze}` WHERE seq >= 2")
    with pytest.raises(PipelineError, match="which was verified before: its table was set back"):
        verify(lake, session)


async def test_a_trim_passes_no_lake_that_follows_the_store(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    """The trims are those that a program calls, and a bus for ``max_history_size``."""
    first = await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    late = await history.completed("order.late")
    assert await store.trim_event_history("default", older_than=0) == 1
    assert await store.cleanup_excess_events("default", keep=0) == 0
    assert await store.trim_log(until=await store.log_head()) == 0
    assert [await store.has_event(event.id) for event in (first, late)] == [False, True]
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    assert lake.value("bronze.event_log", "count(*)") == 6
    assert await store.trim_event_history("default", older_than=0) == 1
    assert read_gaps(lake) == []


async def test_each_lake_has_a_verified_position_of_its_own(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    second = Lake(lake.spark, tmp_path / "second")
    Archive(second, session).run()
    assert verify(second, session).rows == 3
    await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    assert await trim(store) == 3, "the second lake has not seen the rest"
    found = await lake_status(lake, store)
    assert found.followers == {lake_id(lake): 0, lake_id(second): 3}
    with pytest.raises(PipelineError, match=f"no lake 'x' follows this store; these do: .*{lake_id(second)}"):
        await forget(store, "x")
    await forget(store, lake_id(second))
    assert await trim(store) == 3
    with pytest.raises(PipelineError, match=r"the store does not know the lake .* --accept-gap goes on"):
        Archive(second, session).run()
    await history.completed()
    Archive(second, session, accept_gap=True).run()
    assert verify(second, session).rows == 3
    (gap,) = read_gaps(second)
    assert (gap.reason, gap.entries, gap.missing) == ("the store had forgotten this lake", None, None)


async def test_an_empty_lake_on_a_trimmed_log_is_refused_with_the_ways_out(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    await trim(store)
    await history.completed()
    new = Lake(lake.spark, tmp_path / "new")
    with pytest.raises(PipelineError, match=rf"{lake_id(lake)}\); --rebuild-from LAKE copies .*, --accept-gap goes on"):
        Pipeline(new, session.url).run(PipelinePart.ARCHIVE)
    assert set((await store.read_archives()).positions) == {archive_name(lake)}, "what is refused holds nothing"
    Pipeline(new, session.url, copy_of=lake).run(PipelinePart.ARCHIVE)
    assert new.value("bronze.event_log", "count(*)") == 6
    assert await store.read_position(archive_name(new)) == await store.log_head()
    assert read_gaps(new) == []
    with pytest.raises(PipelineError, match="has entries: --rebuild-from needs an empty one"):
        Pipeline(new, session.url, copy_of=lake).run(PipelinePart.ARCHIVE)
    poor = Lake(lake.spark, tmp_path / "poor")
    Pipeline(poor, session.url, accept_gap=True).run(PipelinePart.ARCHIVE)
    assert poor.value("bronze.event_log", "count(*)") == 3
    assert [gap.reason for gap in read_gaps(poor)] == ["trimmed before this lake began"]


async def test_a_forced_trim_is_in_the_ledger(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    await history.completed()
    await history.publish()
    before = await store.log_head()
    assert trim_unread(lake, session, older_than=0.0) == 6, "three that were verified, and three that were not"
    (gap,) = read_gaps(lake)
    assert (gap.reason, gap.until, gap.entries, gap.missing) == ("forced trim", before, 4, 3)
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    assert lake.value("bronze.event_log", "count(*)") == 4
    Pipeline(lake, session.url).run(PipelinePart.PROJECT)
    page = report(lake, made_at=datetime.now(UTC))
    assert "Trimmed before it was archived: 3 log entries." in page
    found = await lake_status(lake, store)
    assert (found.behind, found.unverified, [gap.missing for gap in found.gaps]) == (0, 0, [3])


async def test_a_lake_before_its_first_run_has_a_status(lake: Lake, store: EventStore, history: History) -> None:
    await history.completed()
    found = await lake_status(lake, store)
    assert (found.lake_id, found.archived, found.behind, found.unverified, found.gaps) == ("", 0, 3, 0, [])


async def test_a_store_that_was_restored_is_named_with_the_remedy(
    lake: Lake, session: StoreSession, history: History, tmp_path: Path
) -> None:
    for _ in range(2):
        await history.completed()
    Archive(lake, session).run()
    async with history_in(f"sqlite:///{tmp_path}/older.db") as older:
        await older.completed()
        with pytest.raises(PipelineError, match=r"is ahead of this store: the store was restored .* into a new one"):
            await lake_status(lake, older.store)
