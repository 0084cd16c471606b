"""A stretch of a store's log as rows, by the shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.types import TimestampType

from durabus.errors import PipelineError
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import EVENT_LOG, EVENT_LOG_COLUMNS, record_batch
from durabus.pipeline.session import SPARK_ERRORS, first_line
from durabus.pipeline.source import ROWS_PER_PAGE, pieces_between
from durabus.pipeline.store_session import ask_store
from durabus.store.contract import EventStore
from durabus.store.events import EventRef


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


LONGEST = 10_000


def archived_trail(lake: Lake, ref: EventRef) -> Answer:
    """Every archived entry of an event, oldest first; no rows if the lake does not know it."""
    key = "id" if isinstance(ref, int) else "event_id"
    return answer(lake.read(EVENT_LOG.name).where(F.col(key) == ref).orderBy("seq").select(*EVENT_LOG_COLUMNS), LONGEST)


class Answer(msgspec.Struct, frozen=True):
    """Named columns and rows of values."""

    columns: list[str]
    rows: list[dict[str, Any]]


def ask_sql(lake: Lake, query: str, *, limit: int) -> Answer:
    """What a SELECT over the tables of the lake answers, at most ``limit`` rows of it."""
    try:
        return answer(lake.sql(query), limit)
    except SPARK_ERRORS as error:
        raise PipelineError(f"the query failed: {first_line(error)}") from error


def answer(frame: DataFrame, limit: int) -> Answer:
    """The first rows of a DataFrame, their instants in UTC."""
    instants = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    rows = [row.asDict(recursive=True) for row in frame.limit(limit).collect()]
    for row in rows:
        row |= {name: in_utc(row[name]) for name in instants if row[name] is not None}
    return Answer(frame.columns, rows)


def in_utc(instant: datetime) -> datetime:
    """An instant of a row: PySpark gives it by this host's calendar, and does not say so."""
    return instant.astimezone(UTC).replace(tzinfo=None)
