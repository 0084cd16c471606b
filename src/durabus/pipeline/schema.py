"""The log as columns: one schema for Spark and Arrow, and the way from a store's rows to an Arrow batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.statuses import Action

_TEXT, _WHOLE, _REAL, _INSTANT = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")
_KINDS = {
    "position": ("position", _TEXT),
    "action": ("action", _TEXT),
    "id": ("id", _WHOLE),
    "event_id": ("event_id", _TEXT),
    "bus": ("bus", _TEXT),
    "type": ("type", _TEXT),
    "status": ("status", _TEXT),
    "at_ts": ("at", _INSTANT),
    "created_ts": ("created_at", _INSTANT),
    "attempt": ("attempt", _WHOLE),
    "generation": ("generation", _WHOLE),
    "fence": ("fence", _WHOLE),
    "worker_id": ("worker_id", _TEXT),
    "error": ("error", _TEXT),
    "reason": ("reason", _TEXT),
    "next_retry_ts": ("next_retry_at", _INSTANT),
    "execution_time_ms": ("execution_time_ms", _REAL),
    "status_code": ("status_code", _WHOLE),
    "tags": ("tags", _TEXT),
    "metadata_json": ("metadata", _TEXT),
    "parent_id": ("parent_id", _TEXT),
    "payload_json": ("payload", _TEXT),
    "errors": ("errors", _TEXT),
    "results": ("results", _TEXT),
}
"""The name and type in the lake of each column of the store's log. Lists stay JSON text, as they are stored."""

_FIELDS = [_KINDS[column] for column in LOG_COLUMNS]
COLUMNS: tuple[str, ...] = tuple(name for name, _ in _FIELDS)
ARROW = pa.schema([*_FIELDS, ("ordinal", _WHOLE)])
"""``ordinal`` counts the rows of one read, in commit order: positions themselves are opaque and do not sort."""

_SPARK_NAMES = {_TEXT: "STRING", _WHOLE: "BIGINT", _REAL: "DOUBLE", _INSTANT: "TIMESTAMP"}
SPARK = ", ".join(f"{field.name} {_SPARK_NAMES[field.type]}" for field in ARROW)

_CALENDAR = 250_000_000_000.0
"""Maximum number of seconds since 1970 that a timestamp can show. Larger values become NULL."""


_NUMBERS = {name: n for n, name in enumerate(COLUMNS)}


def record_batch(
    rows: Sequence[tuple[Any, ...]], ordinals: Sequence[int], names: Sequence[str] = ARROW.names
) -> pa.RecordBatch:
    """Return these columns of rows of ``LogRows`` as Arrow."""
    fields = [ARROW.field(name) for name in names]
    # Transposing whole rows is faster than picking each column, unless there are few.
    whole = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows and len(fields) == len(ARROW) else None
    arrays = []
    for field in fields:
        if field.name == "ordinal":
            arrays.append(pa.array(ordinals, _WHOLE))
        else:
            number = _NUMBERS[field.name]
            values = [row[number] for row in rows] if whole is None else whole[field.name]
            arrays.append(_array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind != _INSTANT:
        return pa.array(values, kind)
    seconds = np.array(values, dtype=np.float64)  # None becomes NaN
    with np.errstate(invalid="ignore"):
        absent = ~(np.abs(seconds) < _CALENDAR)
    micros = np.rint(np.where(absent, 0.0, seconds) * 1e6).astype(np.int64)
    return pa.array(micros, pa.int64(), mask=absent).cast(kind)


LOG_DDL = SPARK.removesuffix(", ordinal BIGINT")


MERGED = {"delta.enableDeletionVectors": "true"}
"""Properties of tables whose rows are replaced: a merge marks rows as deleted instead of writing their files again."""
APPENDED = {"delta.appendOnly": "true"}
"""Properties of tables whose rows stay."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One Delta table. ``name`` is ``schema.table``; ``key`` identifies a row in a merge."""

    name: str
    ddl: str
    key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    append_only: bool = False
    searched_by: tuple[str, ...] = ()
    """Columns whose minimum and maximum Delta notes for each file. Empty: the first 32 columns, which takes longer."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        searched = {"delta.dataSkippingStatsColumns": ",".join(self.searched_by)} if self.searched_by else {}
        return (APPENDED if self.append_only else MERGED) | searched

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(field.split()[0] for field in self.ddl.split(", "))


EVENT_LOG = Table(
    name="bronze.event_log",
    ddl=f"seq BIGINT, day DATE, {LOG_DDL}, unparsable STRING",
    partitioned_by=("day",),
    append_only=True,
    searched_by=("seq", "position", "id", "event_id", "at", "created_at"),
)
"""Every entry of the log, once, as the store had it. ``seq`` counts them in commit order; ``unparsable`` is set where a
column does not parse. In addition, a PUBLISHED entry has the payload if its event was live when it was archived."""

QUARANTINE = Table(name="bronze.quarantine", ddl=EVENT_LOG.ddl, append_only=True)
"""The entries with ``unparsable``, for people who repair them."""

EVENTS = Table(
    name="silver.events",
    ddl=(
        "id BIGINT, event_id STRING, bus STRING, type STRING, status STRING, generation BIGINT, attempts BIGINT, "
        "claims BIGINT, failures BIGINT, published_at TIMESTAMP, picked_at TIMESTAMP, ended_at TIMESTAMP, "
        "last_at TIMESTAMP, waiting_ms DOUBLE, running_ms DOUBLE, end_to_end_ms DOUBLE, worker_id STRING, "
        "last_error STRING, errors ARRAY<STRING>, tags ARRAY<STRING>, parent_id STRING, metadata STRING, "
        "payload STRING, results STRING, replay_of STRING, first_seq BIGINT, last_seq BIGINT"
    ),
    key=("id",),
)
"""One row per event: its status and its durations."""

ATTEMPTS = Table(
    name="silver.attempts",
    ddl=(
        "id BIGINT, fence BIGINT, event_id STRING, bus STRING, type STRING, generation BIGINT, attempt BIGINT, "
        "worker_id STRING, picked_at TIMESTAMP, started_at TIMESTAMP, ended_at TIMESTAMP, outcome STRING, "
        "error STRING, reason STRING, execution_time_ms DOUBLE, held_ms DOUBLE, last_seq BIGINT"
    ),
    key=("id", "fence"),
)
"""One row per claim: its worker, its begin and end, and its outcome (NULL: it still runs)."""

REFUSED = Table(
    name="silver.quarantine",
    ddl=(
        "table_name STRING, id BIGINT, event_id STRING, type STRING, published_at TIMESTAMP, reason STRING, "
        "payload STRING"
    ),
    key=("table_name", "id"),
)
"""The events that a typed table lacks, with the reason."""

RUNS = Table(
    name="ops.runs",
    ddl=(
        "run_id STRING, step STRING, version BIGINT, watermark BIGINT, rows BIGINT, seconds DOUBLE, "
        "finished_at TIMESTAMP, error STRING"
    ),
    append_only=True,
)
"""One row per step of a run. The ``watermark`` of a projection is the last ``seq`` that it has seen."""

GAPS = Table(
    name="ops.gaps",
    ddl=(
        "gap_id STRING, reason STRING, after STRING, until STRING, entries BIGINT, missing BIGINT, noted_at TIMESTAMP"
    ),
    append_only=True,
)
"""The gap ledger: parts of the log that were trimmed before they were archived. The newest row of a gap counts."""

EXPECTATIONS = Table(
    name="ops.expectations",
    ddl=(
        "run_id STRING, name STRING, table_name STRING, action STRING, rows BIGINT, broken BIGINT, "
        "samples ARRAY<STRING>, checked_at TIMESTAMP"
    ),
    append_only=True,
)
"""One row per expectation and run: how many rows of the table break it, and the first of them as JSON."""

HISTOGRAMS = ("waiting", "running", "end_to_end")
"""The durations of ``gold.activity``, each with a histogram: see ``durabus.pipeline.histograms``."""
PERCENTILES = (50, 95, 99)
COUNTERS = (
    "entries",
    "published",
    "claimed",
    "retried",
    "completed",
    "dead",
    "cancelled",
    "failed",
    "abandoned",
    "late",
    "released",
    "requeued",
    "waiting_change",
    "working_change",
    "handler_us",
    "busy_us",
)
"""The columns of ``gold.activity`` that add up."""

ACTIVITY = Table(
    name="gold.activity",
    ddl=(
        "step STRING, since TIMESTAMP, facet STRING, bus STRING, type STRING, name STRING, "
        + ", ".join(f"{name} BIGINT" for name in COUNTERS)
        + ", "
        + ", ".join(f"{name} ARRAY<STRUCT<from_us:BIGINT,count:BIGINT>>" for name in HISTOGRAMS)
        + ", "
        + ", ".join(f"{name}_p{share}_ms DOUBLE" for name in HISTOGRAMS for share in PERCENTILES)
        + ", first_at TIMESTAMP, last_at TIMESTAMP, example STRING, example_event_id STRING, last_seq BIGINT"
    ),
    key=("step", "since", "facet", "bus", "type", "name"),
    searched_by=("step", "since", "last_seq"),
)
"""What happened in each minute, hour and day, by type, handler, worker, error and parent."""

EVENT_LOG_COLUMNS = COLUMNS
IN_THE_LOG = tuple(
    f"CASE WHEN action <> '{Action.PUBLISHED.value}' THEN payload END" if name == "payload" else name
    for name in COLUMNS
)
"""SQL for each column as the store's log has it, which has no payload in PUBLISHED entries."""
CORE_TABLES = (EVENT_LOG, QUARANTINE, EVENTS, ATTEMPTS, REFUSED, RUNS, GAPS, EXPECTATIONS)
