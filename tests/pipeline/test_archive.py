"""``bronze.event_log``: every entry once, whatever happens on the way."""

import sqlite3
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History, history_in
from tests.pipeline.test_source import plain, to_the_microsecond

from durabus import EventStore
from durabus.errors import LeaseLost, PipelineError
from durabus.pipeline.archive import Archive, Archived, Reached, quarantine
from durabus.pipeline.derive import Compacted, compact, update_silver
from durabus.pipeline.lake import Lake, lake_path
from durabus.pipeline.lake_lock import alone, lake_lock
from durabus.pipeline.rebuilding import rebuild, rollback
from durabus.pipeline.run import Pipeline, PipelinePart, RunStep
from durabus.pipeline.schema import COLUMNS, EVENT_LOG, EVENTS, IN_THE_LOG, QUARANTINE
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import prove
from durabus.store.log import START


async def expect_the_whole_log(lake: Lake, store: EventStore) -> None:
    """The payload of live events is not in the log, see ``test_payloads.py``."""
    in_the_log = F.expr(IN_THE_LOG[COLUMNS.index("payload")])
    rows = lake.read("bronze.event_log").withColumn("payload", in_the_log).orderBy("seq").collect()
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert [plain(row) for row in rows] == to_the_microsecond((await store.read_log_rows(limit=10_000)).rows)
    assert all(row["day"] == row["at"].date() for row in rows)


async def test_the_log_is_archived_once_and_then_only_what_is_new(
    lake: Lake, session: StoreSession, store: EventStore, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark tasks read the first batch; the driver reads the others, of one page each."""
    await history.varied()
    total = await store.log_lag(START)
    told: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("durabus.pipeline.source.ROWS_PER_PAGE", 10)
        assert Archive(lake, session, rows_per_batch=20).run(told.append) == Archived(rows=total, total=total)
    assert told == [20, total]
    assert Archive(lake, session).run() == Archived(rows=0, total=total)
    await history.completed()
    newer = await store.log_lag(START)
    assert Archive(lake, session).run() == Archived(rows=newer - total, total=newer)
    await expect_the_whole_log(lake, store)


@pytest.mark.long
async def test_the_log_of_a_second_store_does_not_get_into_the_lake_of_the_first(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    """The second log may be shorter, or have another entry at the position where the first one ends."""
    for _ in range(2):
        await history.completed()
    Archive(lake, session).run()
    for events in (1, 9):
        other = f"sqlite:///{tmp_path}/{events}.db"
        async with history_in(other) as second:
            for _ in range(events):
                await second.completed(event_id=str(uuid4()))
        refused = r"lake .* has the log of another store, .* choose another --lake"
        with StoreSession(other) as opened, pytest.raises(PipelineError, match=refused):
            Archive(lake, opened).run()
    await expect_the_whole_log(lake, store)


async def test_a_run_that_dies_after_a_batch_goes_on_behind_it(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    await history.varied()

    def die(_: int) -> None:
        raise RuntimeError("killed between two batches")

    with pytest.raises(RuntimeError, match="killed between"):
        Archive(lake, session, rows_per_batch=10).run(die)
    assert lake.value("bronze.event_log", "count(*)") == 10
    await history.completed()
    assert Archive(lake, session).run().rows == await store.log_lag(START) - 10
    await expect_the_whole_log(lake, store)


async def test_of_two_writers_that_begin_at_the_same_row_one_writes(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    """A killed run may leave a Java process behind that writes the same rows as the next run."""
    await history.varied()
    head = await store.log_head()
    late, early = Archive(lake, session), Archive(lake, session)
    lake.create(EVENT_LOG)
    assert early.run().rows == await store.log_lag(START)
    late._write(Reached(), [head])
    await expect_the_whole_log(lake, store)


@pytest.mark.long
async def test_a_table_that_was_set_back_is_noticed(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    await history.varied()
    Archive(lake, session, rows_per_batch=10).run()
    lake.spark.sql(f"ALTER TABLE delta.`{lake.location('bronze.event_log')}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    lake.spark.sql(f"DELETE FROM delta.`{lake.location('bronze.event_log')}` WHERE seq >= 10")
    with pytest.raises(PipelineError, match=r"did not grow beyond row 10: it was restored to an older version"):
        Archive(lake, session).run()


@pytest.mark.long
async def test_what_does_not_parse_is_kept_and_set_apart(
    lake: Lake, session: StoreSession, store: EventStore, history: History, tmp_path: Path
) -> None:
    damaged = [await history.completed(payload={"order": number}) for number in range(5)]
    await history.completed("mail.requested", {"fine": True})
    breakages = {
        "payload is not JSON": "payload = '{\"order\": '",
        "results are not JSON": "results = 'oops'",
        "tags are no list": "tags = '{\"a\": 1}'",
        "errors are no list": "errors = 'x'",
        "unknown action": "action = 'SHREDDED'",
    }
    database = sqlite3.connect(tmp_path / "bus.db")
    with database:
        for event, change in zip(damaged, breakages.values(), strict=True):
            database.execute(f"UPDATE event_log SET {change} WHERE id = ? AND action = 'COMPLETED'", (event.id,))
    database.close()
    Archive(lake, session).run()
    assert quarantine(lake) == 5
    bad_rows = lake.read("bronze.event_log").where("unparsable IS NOT NULL")
    lake.append(bad_rows, QUARANTINE, app="durabus.archive.quarantine", version=0)  # a Java that was left behind
    assert quarantine(lake) == 5
    bad = lake.read("bronze.quarantine").orderBy("seq").collect()
    assert [row["unparsable"] for row in bad] == list(breakages)
    assert bad[0]["payload"] == '{"order": '
    await expect_the_whole_log(lake, store)
    update_silver(lake, "silver.events")
    rows = {row["id"]: row for row in lake.read("silver.events").collect()}
    assert {row["status"] for row in rows.values()} == {"COMPLETED"}
    assert rows[damaged[0].id]["payload"] is None
    assert rows[damaged[1].id]["payload"] == '{"order":1}'


@pytest.mark.long
async def test_a_past_version_of_a_table_can_still_be_read_after_compaction(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    for _ in range(2):
        await history.completed()
        Archive(lake, session).run()
    version = lake.version("bronze.event_log")
    in_a_month = datetime.now(UTC) + timedelta(days=30)
    assert compact(lake, keep_days=7, now=in_a_month) == [Compacted(name="bronze.event_log", before=2, after=1)]
    await history.completed()
    assert Archive(lake, session).run().rows == 3
    assert lake.read("bronze.event_log", version=version).count() == 6
    assert lake.read("bronze.event_log", version=version - 1).count() == 3
    await expect_the_whole_log(lake, store)


def test_a_second_run_on_a_locked_lake_is_refused_in_one_line(tmp_path: Path) -> None:
    with (
        lake_lock(str(tmp_path)),
        pytest.raises(PipelineError, match=r"is locked by another run \(.+:\d+\): wait"),
        lake_lock(str(tmp_path)),
    ):
        pass
    with lake_lock(str(tmp_path)):
        pass


def test_a_lake_that_is_let_go_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as first:
        first.enter_context(lake_lock(str(tmp_path)))
        monkeypatch.setattr("durabus.pipeline.lake_lock.time.sleep", lambda _: first.close())
        with lake_lock(str(tmp_path), wait=60.0):
            pass


def test_every_column_of_the_log_is_in_bronze(lake: Lake) -> None:
    assert set(COLUMNS) < set(EVENT_LOG.columns)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("file:/x/lake", "file:/x/lake"),
        ("file:///x/lake/", "file:///x/lake"),
        ("dbfs:/lake", "dbfs:/lake"),
        ("s3a://bucket/lake/", "s3a://bucket/lake"),
        ("~/lake", str(Path("~/lake").expanduser())),
        ("lake", str(Path("lake").absolute())),
        (Path("/x/lake"), "/x/lake"),
    ],
)
def test_a_lake_is_a_folder_or_a_url(given: str | Path, path: str) -> None:
    assert lake_path(given) == path


async def test_of_two_runs_on_a_lake_in_a_bucket_the_second_is_refused(
    spark: SparkSession, url: str, store: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On such a lake no file can be locked, so the lock is in the store. This holds for every command that writes."""
    monkeypatch.setattr("durabus.pipeline.lake_lock.KILLED_WITHIN", 0.0)
    lake = Lake(spark, f"file:{tmp_path}/lake")
    pipeline = Pipeline(lake, url)
    with StoreSession(url) as session, alone(lake.path, session), StoreSession(url) as other:
        writers = (
            lambda: pipeline.run(PipelinePart.ARCHIVE),
            lambda: rebuild(lake, EVENTS.name, [], session=other),
            lambda: rollback(lake, EVENTS.name, session=other),
            lambda: prove(lake, other),
            lambda: compact(lake, keep_days=7, now=datetime.now(UTC), session=other),
        )
        for write in writers:
            with pytest.raises(PipelineError, match=r"another run writes the lake file:.*: wait for it, or stop it"):
                write()
        with pytest.raises(PipelineError, match="is in a bucket: name its store, whose lock keeps two writers apart"):
            rebuild(lake, EVENTS.name, [])
        assert not lake.exists("bronze.event_log")
    pipeline.run(PipelinePart.ARCHIVE)
    assert lake.tables() == ["bronze.event_log", "bronze.quarantine", "ops.runs"]


async def test_a_run_that_loses_the_lock_of_its_lake_stops(
    spark: SparkSession, url: str, store: EventStore, tmp_path: Path
) -> None:
    pipeline = Pipeline(Lake(spark, f"file:{tmp_path}/lake"), url)
    with StoreSession(url) as session, alone(pipeline._lake.path, session) as pipeline._keeping:
        database = sqlite3.connect(tmp_path / "bus.db")
        with database:
            assert database.execute("DELETE FROM locks").rowcount == 1
        database.close()
        assert pipeline._keeping is not None
        with pytest.raises(LeaseLost):
            pipeline._keeping.result(60.0)
        with pytest.raises(LeaseLost):
            pipeline._steps(RunStep(name="analyze", work=lambda: (0, None)))
