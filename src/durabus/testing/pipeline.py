"""Runs a projection on a few rows, without a store and without a lake, for tests of your own projections.

::

    rows = run_projection(spent, {"silver.events": [{"type": "order.placed", "payload": {"customer": "ann"}}]})
    assert rows == [{"customer": "ann", "orders": 1}]
"""

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
SampleRows = Sequence[Mapping[str, Any]]


def run_projection(
    projection: Projection,
    inputs: Mapping[str, SampleRows],
    *,
    schemas: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return the rows that a projection makes of these rows of its inputs, in the order of its key.

    - A row of a table of durabus needs only the columns that the projection uses; the others are NULL. Payload,
      metadata and results may be Python values.
    - An event without a status is COMPLETED. One without ``published_at`` or ``ended_at`` gets some instant, but a
      PENDING or PROCESSING one has not ended, so it counts only with ``live=True``.
    - ``schemas`` gives the columns of other inputs, such as ``"currency STRING, rate DOUBLE"``. Without it, they are
      inferred from the rows.
    - Instants in the result are in UTC. Without ``spark``, the first call starts a small session, which ends with the
      process.
    """
    unknown = sorted(set(inputs) ^ set(projection.inputs))
    if unknown:
        raise ConfigurationError(
            f"inputs of {projection.name}: {unknown[0]!r} is given or declared, but not both: give rows for each of "
            f"{', '.join(projection.inputs)}"
        )
    return _projected(spark or _small_session(), projection, inputs, schemas or {})


def _small_session() -> SparkSession:
    """Return a session for a few rows: the running one, or a new one that starts quickly."""
    return spark_session(master="local[1]", conf=QUICK)


def _projected(
    spark: SparkSession,
    projection: Projection,
    inputs: Mapping[str, SampleRows],
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
