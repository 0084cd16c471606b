"""The log as columns: one schema for Spark and Arrow, and the way from a store's rows to an Arrow batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from durabus.model.log_entry import LOG_COLUMNS

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
"""What each column of the store's log is called in the lake, and its type. Lists stay JSON text, as they are stored."""

_FIELDS = [_KINDS[column] for column in LOG_COLUMNS]
COLUMNS: tuple[str, ...] = tuple(name for name, _ in _FIELDS)
ARROW = pa.schema([*_FIELDS, ("ordinal", _WHOLE)])
"""``ordinal`` counts the rows of one read, in commit order: positions themselves are opaque and do not sort."""

_SPARK_NAMES = {_TEXT: "STRING", _WHOLE: "BIGINT", _REAL: "DOUBLE", _INSTANT: "TIMESTAMP"}
SPARK = ", ".join(f"{field.name} {_SPARK_NAMES[field.type]}" for field in ARROW)

_CALENDAR = 250_000_000_000.0
"""Seconds from 1970 to the end of what a timestamp can show; what lies beyond becomes NULL."""


def record_batch(rows: Sequence[tuple[Any, ...]], ordinals: Sequence[int]) -> pa.RecordBatch:
    """Rows of ``LogRows`` as Arrow."""
    columns = zip(*rows, strict=True) if rows else [()] * len(_FIELDS)
    arrays = [_array(values, kind) for values, (_, kind) in zip(columns, _FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(ordinals, _WHOLE)], schema=ARROW)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind is not _INSTANT:
        return pa.array(values, kind)
    seconds = np.array(values, dtype=np.float64)  # None becomes NaN
    with np.errstate(invalid="ignore"):
        absent = ~(np.abs(seconds) < _CALENDAR)
    micros = np.rint(np.where(absent, 0.0, seconds) * 1e6).astype(np.int64)
    return pa.array(micros, pa.int64(), mask=absent).cast(kind)
