"""The tables without Spark: what any program can do with them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.history import History

from durabus import ManualClock, open_store
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import update_silver
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import QUICK

Counts = list[tuple[str, int]]


def with_deltalake(place: str) -> Counts:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from deltalake import DeltaTable, QueryBuilder

    query = "SELECT type, count(*) AS n FROM events GROUP BY type ORDER BY type"
    found = QueryBuilder().register("events", DeltaTable(place)).execute(query)
    return [(row["type"], row["n"]) for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()]


def with_polars(place: str) -> Counts:
    import polars as pl

    counts: Counts = pl.scan_delta(place).group_by("type").len().sort("type").collect().rows()
    return counts


async def trade(url: str, *, later: bool) -> None:
    clock = ManualClock(1_990_000_100.0 if later else 1_990_000_000.0)
    store = await open_store(url, clock=clock)
    history = History(store, clock)
    await history.completed("order.placed", {"order": 1})
    if not later:
        await history.publish("mail.requested", {"order": 1})
    await store.close()


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """After a merge that marks rows as deleted, so that the table has what only newer readers understand."""
    folder = tmp_path_factory.mktemp("readers")
    url, made = f"sqlite:///{folder}/bus.db", Lake(spark, folder / "lake")
    asyncio.run(trade(url, later=False))
    Archive(made, url).run()
    update_silver(made, "silver.events")
    asyncio.run(trade(url, later=True))
    Archive(made, url).run()
    marking = "spark.databricks.delta.merge.deletionVectors.persistent"
    spark.conf.set(marking, "true")
    update_silver(made, "silver.events")
    spark.conf.set(marking, QUICK[marking])
    return made


@pytest.mark.parametrize("count", [with_deltalake, with_polars])
def test_tables_can_be_read_without_spark(lake: Lake, count: Callable[[str], Counts]) -> None:
    assert list(Path(lake.location("silver.events")).glob("deletion_vector_*.bin"))
    assert count(lake.location("silver.events")) == [("mail.requested", 1), ("order.placed", 2)]
    assert count(lake.location("bronze.event_log")) == [("mail.requested", 3), ("order.placed", 6)]
