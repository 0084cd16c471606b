"""A stretch of a store's log as rows, by the shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession

from durabus.pipeline.asking import ask_store
from durabus.pipeline.log_schema import record_batch
from durabus.pipeline.source import ROWS_PER_PAGE, pieces_between
from durabus.store.contract import EventStore


def log_stretch(spark: SparkSession, url: str, after: str, ends: Sequence[str], rows: int) -> DataFrame:
    """What ``format("durabus")`` gives for a stretch that was cut into pages with these ends, for tasks of ``rows``.

    One page is read here: Spark starts two Pythons to plan a task that reads it and one to run it, which takes seconds.
    """
    if len(ends) > 1:
        pieces = msgspec.json.encode(pieces_between(after, ends, rows)).decode()
        return spark.read.format("durabus").option("url", url).option("pieces", pieces).load()
    found = ask_store(url, lambda store: _page(store, after, ends[0]))
    page = spark.createDataFrame(pa.Table.from_batches([record_batch(found, range(len(found)))]))
    return page.coalesce(1)  # for one small file instead of several


async def _page(store: EventStore, after: str, end: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while after != end:
        page = await store.read_log_rows(after=after, until=end, limit=ROWS_PER_PAGE)
        if not page.rows:
            break  # the rest of it was trimmed
        found += page.rows
        after = page.next
    return found
