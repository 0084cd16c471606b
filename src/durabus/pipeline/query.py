"""Questions in SQL, and their answers as plain values."""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import DataFrame

from durabus.errors import PipelineError
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import SPARK_ERRORS, first_line


class Answer(msgspec.Struct, frozen=True):
    """Named columns and rows of values."""

    columns: list[str]
    rows: list[dict[str, Any]]


def ask_sql(lake: Lake, query: str, *, limit: int) -> Answer:
    """What a SELECT over the tables of the lake answers, at most ``limit`` rows of it."""
    lake.register()
    try:
        return answer(lake.spark.sql(query), limit)
    except SPARK_ERRORS as error:
        raise PipelineError(f"the query failed: {first_line(error)}") from error


def answer(frame: DataFrame, limit: int) -> Answer:
    """The first rows of a DataFrame."""
    return Answer(frame.columns, [row.asDict(recursive=True) for row in frame.limit(limit).collect()])
