"""The tables without Spark: what any program can do with them."""

from collections.abc import Callable

import pytest
from tests.pipeline.history import History

from durabus import EventStore
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import update_silver
from durabus.pipeline.lake import Lake

Counts = list[tuple[str, int]]


def with_deltalake(place: str) -> Counts:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from deltalake import DeltaTable, QueryBuilder

    query = "SELECT type, count(*) AS n FROM events GROUP BY type ORDER BY type"
    found = QueryBuilder().register("events", DeltaTable(place)).execute(query)
    return [(row["type"], row["n"]) for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()]


def with_polars(place: str) -> Counts:
    polars = pytest.importorskip("polars")
    counts: Counts = polars.scan_delta(place).group_by("type").len().sort("type").collect().rows()
    return counts


@pytest.mark.parametrize("count", [with_deltalake, with_polars])
async def test_tables_can_be_read_without_spark(
    lake: Lake, url: str, store: EventStore, history: History, count: Callable[[str], Counts]
) -> None:
    """After a merge, so that the table has what only newer readers understand."""
    await history.completed("order.placed", {"order": 1})
    await history.publish("mail.requested", {"order": 1})
    Archive(lake, url).run()
    update_silver(lake, "silver.events")
    await history.completed("order.placed", {"order": 2})
    Archive(lake, url).run()
    update_silver(lake, "silver.events")
    assert count(lake.location("silver.events")) == [("mail.requested", 1), ("order.placed", 2)]
    assert count(lake.location("bronze.event_log")) == [("mail.requested", 3), ("order.placed", 6)]
