"""Questions in SQL, and their answers as plain values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from durabus.errors import PipelineError
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import SPARK_ERRORS, first_line


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
