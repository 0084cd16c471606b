"""The tables without Spark: what any program can do with them."""

import pytest
from tests.pipeline.history import History

from durabus import EventStore
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import update_silver
from durabus.pipeline.lake import Lake


async def test_tables_can_be_read_without_spark(lake: Lake, url: str, store: EventStore, history: History) -> None:
    """After a merge, so that the table has what only newer readers understand."""
    polars = pytest.importorskip("polars")
    pytest.importorskip("deltalake")
    await history.varied()
    for _ in range(2):
        Archive(lake, url).run()
        update_silver(lake, "silver.events")
        await history.completed("order.placed", {"order": 1})
    frame = polars.scan_delta(lake.location("silver.events")).group_by("type").len().sort("type").collect()
    expected = lake.read("silver.events").groupBy("type").count().orderBy("type").collect()
    assert frame.rows() == [(row["type"], row["count"]) for row in expected]
    bronze = polars.scan_delta(lake.location("bronze.event_log")).select(polars.len()).collect().item()
    assert bronze == lake.read("bronze.event_log").count()
