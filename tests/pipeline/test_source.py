"""``format("durabus")``: the log as rows, in parallel, as a stream, without secrets."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History

from durabus import EventStore
from durabus.pipeline import payloads
from durabus.pipeline.read_request import ReadRequest
from durabus.pipeline.schema import COLUMNS, SPARK
from durabus.pipeline.source import Piece, pieces_between, read_piece
from durabus.store.log import START


def read(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("durabus").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


async def test_rows_are_the_log(spark: SparkSession, url: str, store: EventStore, history: History) -> None:
    await history.varied()
    expected = (await store.read_log_rows()).rows
    frame = read(spark, url, payloads=False)
    assert frame.schema == spark.createDataFrame([], SPARK).schema
    found = frame.orderBy("ordinal").collect()
    assert [row["ordinal"] for row in found] == list(range(len(expected)))
    assert [plain(row) for row in found] == to_the_microsecond(expected)


def plain(row: Row) -> tuple[object, ...]:
    """Return a row as the store returns it, with instants as seconds."""
    values = [row[name] for name in COLUMNS]
    return tuple(value.timestamp() if hasattr(value, "timestamp") else value for value in values)


def to_the_microsecond(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return rows of a store with instants rounded to those of a table."""
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in rows]


async def test_tasks_read_ranges_of_the_cursor_side_by_side(
    spark: SparkSession, url: str, history: History, store: EventStore
) -> None:
    await history.varied()
    total = await store.log_lag(START)
    frame = read(spark, url, rowsPerPartition=4).withColumn("task", F.spark_partition_id())
    tasks = {
        row["task"]: row["rows"] for row in frame.groupBy("task").agg(F.collect_list("ordinal").alias("rows")).collect()
    }
    assert [tasks[task] for task in sorted(tasks)] == [list(range(n, min(n + 4, total))) for n in range(0, total, 4)]
    ends = await store.cut_log(until=await store.log_head(), rows=4)
    pieces = json.dumps(pieces_between(START, ends, 4))
    assert read(spark, url, pieces=pieces).withColumn("task", F.spark_partition_id()).collect() == frame.collect()


async def test_a_frame_that_was_filtered_once_is_whole_the_next_time(
    spark: SparkSession, url: str, history: History, store: EventStore
) -> None:
    """Spark 4.2.0 keeps filters that a Python source accepted: this fails if ours accepts any."""
    await history.varied()
    total = await store.log_lag(START)
    frame = read(spark, url)
    picked = frame.where("action = 'PICKED'").count()
    assert 0 < picked < total
    assert frame.count() == total
    assert frame.where("action = 'FAILED' AND attempt = 1").count() == 3


async def test_options_leave_rows_out_before_spark_sees_them(spark: SparkSession, url: str, history: History) -> None:
    await history.varied()
    await history.publish("order.placed", bus="other")
    assert read(spark, url, bus="other").count() == 1
    kinds = {row["type"] for row in read(spark, url, type="order.*").collect()}
    assert kinds == {"order.placed"}
    ended = read(spark, url, action="COMPLETED,FAILED", bus="default").groupBy("action").count().collect()
    assert {row["action"]: row["count"] for row in ended} == {"COMPLETED": 4, "FAILED": 3}


async def test_a_range_of_time_can_be_read(spark: SparkSession, url: str, history: History, store: EventStore) -> None:
    """The range includes its begin and not its end. Without a time zone, an instant is in UTC."""
    await history.varied()
    instants = sorted({entry.at_ts for entry in (await store.read_log()).entries})
    since, before = (datetime.fromtimestamp(instants[n], UTC) for n in (2, 6))
    found = read(spark, url, since=since.isoformat(), before=before.replace(tzinfo=None).isoformat()).collect()
    assert {row["at"].timestamp() for row in found} == set(instants[2:6])
    whole = {row["ordinal"]: row["position"] for row in read(spark, url).collect()}
    assert {row["ordinal"]: row["position"] for row in found}.items() <= whole.items(), "ordinals count all rows"


async def test_only_the_columns_of_the_schema_are_read(spark: SparkSession, url: str, history: History) -> None:
    await history.varied()
    whole = read(spark, url).select("type", "id").collect()
    pruned = spark.read.format("durabus").option("url", url).schema("type STRING, id BIGINT").load()
    assert (pruned.columns, pruned.collect()) == (["type", "id"], whole)
    with pytest.raises(PySparkException, match=r"the log has no column id STRING: choose from position STRING"):
        spark.read.format("durabus").option("url", url).schema("id STRING").load().collect()
    batch = next(read_piece(url, await one_piece(history.store), ReadRequest({}, ["type", "id"])))
    assert batch.schema.names == ["type", "id"], "Spark gets no other column to drop"


async def test_payloads_are_asked_only_for_wanted_events(
    url: str, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of another type, or a read without the payload, costs no question to the store."""
    await history.publish("order.placed")
    await history.publish("mail.sent")
    asked: list[list[int]] = []
    events = payloads._events

    async def counted(store: EventStore, ids: list[int]) -> object:
        asked.append(ids)
        return await events(store, ids)

    monkeypatch.setattr(payloads, "_events", counted)
    piece = await one_piece(history.store)
    (batch,) = read_piece(url, piece, ReadRequest({"type": "mail.*"}))
    assert (batch["payload"].to_pylist(), asked) == (['{"order":1}'], [[2]])
    list(read_piece(url, piece, ReadRequest({}, ["type", "id"])))
    assert asked == [[2]]


async def one_piece(store: EventStore) -> Piece:
    """Return the whole log as the part of one task."""
    return Piece(START, (await store.log_head(),), 0)


async def test_a_stretch_between_two_positions_can_be_read(
    spark: SparkSession, url: str, history: History, store: EventStore
) -> None:
    await history.varied()
    entries = (await store.read_log()).entries
    after, until = entries[4].position, entries[9].position
    rows = read(spark, url, after=after, until=until).orderBy("ordinal").collect()
    assert [row["position"] for row in rows] == [entry.position for entry in entries[5:10]]
    assert read(spark, url, after=until, until=until).count() == 0


async def test_an_empty_log_has_no_rows(spark: SparkSession, url: str, store: EventStore) -> None:
    assert read(spark, url).count() == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"url": ""}, 'needs option("url", …)'),
        ({"url": "memory://"}, "memory:// lives inside one process"),
        ({"url": "cassandra://x"}, "no store for cassandra://"),
        ({"rowsPerPartition": "0"}, "rowsPerPartition='0': must be a whole number of 1 or more"),
        ({"after": "nonsense"}, "position='nonsense': not one that this log gave"),
        ({"type": "or*"}, "the star is only a part of the segment"),
        ({"rowsPerTask": "9"}, "the durabus source has no option 'rowspertask': choose from url, after, until, "),
        (
            {"path": "bus.db"},
            "load('bus.db'): the durabus source reads a store, not a path: name the store with option",
        ),
        ({"since": "noon"}, "since='noon': must be an instant, such as 2026-11-18T09:30:00"),
    ],
)
async def test_what_cannot_work_is_refused_with_the_reason(
    spark: SparkSession, url: str, store: EventStore, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, options.get("url", url), **{k: v for k, v in options.items() if k != "url"}).count()
    assert complaint in str(caught.value)


async def test_a_url_shows_up_in_no_plan_and_no_checkpoint(
    spark: SparkSession, url: str, history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path of the file stands for a password: both are in the URL and nowhere else."""
    await history.varied()
    secret = "bus.db"
    frame = read(spark, url)
    frame.explain("extended")
    frame.explain("formatted")
    assert secret not in capsys.readouterr().out
    stream = spark.readStream.format("durabus").option("url", url).load()
    checkpoint = tmp_path / "checkpoint"
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.lastProgress is not None
    assert secret not in query.lastProgress.json
    written = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if secret.encode() in path.read_bytes()]


async def test_a_stream_goes_on_where_it_stopped_in_batches_of_the_given_size(
    spark: SparkSession, url: str, history: History, store: EventStore, tmp_path: Path
) -> None:
    await history.varied()
    total = await store.log_lag(START)
    batches: list[list[str]] = []

    def run() -> None:
        stream = spark.readStream.format("durabus").option("url", url).option("maxRowsPerTrigger", 10).load()
        query = (
            stream.writeStream.foreachBatch(
                lambda rows, _: batches.append([row["position"] for row in rows.orderBy("ordinal").collect()])
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert [len(batch) for batch in batches] == [10] * (total // 10) + [total % 10]
    run()
    assert sum(map(len, batches)) == total
    await history.completed("order.placed")
    run()
    log = (await store.read_log()).entries
    assert [position for batch in batches for position in batch] == [entry.position for entry in log]
