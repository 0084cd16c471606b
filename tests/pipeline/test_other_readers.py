"""The tables without Spark: what any program can do with them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.history import history_in
from tests.pipeline.notebook import Notebook

from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import update_silver
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import QUICK
from durabus.pipeline.store_session import StoreSession

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


async def trade(url: str) -> None:
    """Requeue the notebook's dead letter, complete it, and add two events."""
    async with history_in(url) as history:
        await history.store.requeue_dead_letters([4])
        await history.completed("order.placed", {"order": 5})
        await history.publish("mail.requested", {"order": 5})


@pytest.fixture(scope="module")
def lake(spark: SparkSession, notebook: Notebook) -> Lake:
    """A lake after a merge that marks rows as deleted, which only newer readers understand."""
    made: Lake = notebook.names["lake"]
    asyncio.run(trade(notebook.names["url"]))
    with StoreSession(notebook.names["url"]) as session:
        Archive(made, session).run()
    marking = "spark.databricks.delta.merge.deletionVectors.persistent"
    spark.conf.set(marking, "true")
    update_silver(made, "silver.events")
    spark.conf.set(marking, QUICK[marking])
    return made


@pytest.mark.parametrize("count", [with_deltalake, with_polars])
def test_tables_can_be_read_without_spark(lake: Lake, count: Callable[[str], Counts]) -> None:
    assert list(Path(lake.location("silver.events")).glob("deletion_vector_*.bin"))
    assert count(lake.location("silver.events")) == [("mail.requested", 1), ("order.placed", 5)]
    assert count(lake.location("bronze.event_log")) == [("mail.requested", 1), ("order.placed", 18)]
