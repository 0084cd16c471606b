"""Turns rows that a test gives as Python values into inputs of a projection, and runs it on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampType

from durabus.errors import ConfigurationError, PipelineError
from durabus.model.statuses import LIVE
from durabus.pipeline.input_tables import CORE, in_columns
from durabus.pipeline.key_tracing import with_expressions
from durabus.pipeline.lake import in_utc
from durabus.pipeline.projections import Projection, of_types
from durabus.pipeline.schema import EVENTS
from durabus.pipeline.session import QUICK, spark_session
from durabus.pipeline.upcasts import upcasted_or_failed

_JSON = ("payload", "metadata", "results")
_SOME_INSTANT = datetime(2026, 1, 1, tzinfo=UTC)


def small_session() -> SparkSession:
    """Return a session for a few rows: the running one, or a new one that starts quickly."""
    return spark_session(master="local[1]", conf=QUICK)


def projected(
    spark: SparkSession,
    projection: Projection,
    inputs: Mapping[str, Sequence[Mapping[str, Any]]],
    schemas: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the rows of a projection for these inputs. Raises ``PipelineError`` if its key is not unique."""
    frames = []
    for name in projection.inputs:
        frame = _frame(spark, name, inputs[name], schemas.get(name))
        if name == EVENTS.name:
            chosen = frame if projection.live else frame.where("ended_at IS NOT NULL")
            frame = with_expressions(upcasted_or_failed(chosen.where(of_types(projection.types))), projection)
        frames.append(frame)
    made = projection.rows(*frames).orderBy(*projection.key)
    instants = [field.name for field in made.schema if isinstance(field.dataType, TimestampType)]
    rows = [row.asDict(recursive=True) for row in made.collect()]
    seen: set[str] = set()
    for row in rows:
        row |= {name: in_utc(row[name]).replace(tzinfo=UTC) for name in instants if row[name] is not None}
        key = repr([row[name] for name in projection.key])
        if key in seen:
            raise PipelineError(f"{projection.name}: its key is not unique: two rows have {key}")
        seen.add(key)
    return rows


def _frame(spark: SparkSession, name: str, rows: Sequence[Mapping[str, Any]], ddl: str | None) -> DataFrame:
    if name not in CORE:
        if ddl is None and not rows:
            raise ConfigurationError(f"{name} has no rows to infer columns from: give its columns with schemas=")
        return spark.createDataFrame([dict(row) for row in rows], ddl)
    schema = in_columns(CORE[name])
    return spark.createDataFrame([_row(name, row, schema, n) for n, row in enumerate(rows)], schema)


def _row(name: str, given: Mapping[str, Any], schema: StructType, number: int) -> tuple[Any, ...]:
    unknown = sorted(set(given) - set(schema.names))
    if unknown:
        raise ConfigurationError(f"{name} has no column {unknown[0]!r}: choose from {', '.join(schema.names)}")
    row = dict(given)
    for column in _JSON:
        if column in row and row[column] is not None and not isinstance(row[column], str):
            row[column] = json.dumps(row[column])
    if name == EVENTS.name:
        row.setdefault("published_at", _SOME_INSTANT)
        row.setdefault("status", "COMPLETED")
        row.setdefault("id", number + 1)
        row.setdefault("first_seq", number)
        if row["status"] not in LIVE:
            row.setdefault("ended_at", row["published_at"])
    return tuple(row.get(column) for column in schema.names)
