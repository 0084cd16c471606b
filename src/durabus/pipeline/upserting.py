"""Replaces few rows of a table. A merge is made for many rows: for few, it costs twice as much as this."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame

from durabus.pipeline.lake import Lake

MOST_KEYS = 2_000
"""Maximum number of keys that a condition names."""
MOST_TERMS = 200
"""Maximum number of terms of a condition. Each names the keys that differ only in their last column."""
_MICROSECOND = timedelta(microseconds=1)


def upsert(lake: Lake, rows: DataFrame, name: str, key: Sequence[str], of: pa.Table) -> None:
    """Replace the rows of a table that have the keys of ``of`` by these rows, in one commit.

    ``of`` has the columns of the key, and at least the keys of ``rows``.
    """
    condition = of_keys(of)
    if condition is None:
        lake.merge(rows, name, key, of=lake.spark.createDataFrame(of))
    else:
        lake.replace_where(rows.coalesce(1), name, condition)


def of_keys(keys: pa.Table) -> str | None:
    """Return a condition that exactly the rows with these keys meet; None if there are too many for one condition.

    The columns of ``keys`` are those of the key. None also if a value has no literal that SQL reads as the same value.
    """
    if len(keys) > MOST_KEYS:
        return None
    terms: dict[tuple[str | None, ...], list[str | None]] = {}
    for row in keys.to_pylist():
        try:
            *first, last = [literal(value) for value in row.values()]
        except TypeError:
            return None
        terms.setdefault(tuple(first), []).append(last)
    if len(terms) > MOST_TERMS:
        return None
    *names, varied = [f"`{name}`" for name in keys.column_names]
    found = []
    for values, varying in terms.items():
        same = [f"{name} <=> {value or 'NULL'}" for name, value in zip(names, values, strict=True)]
        found.append(" AND ".join([*same, _is_one_of(varied, varying)]))
    return " OR ".join(f"({one})" for one in found) or "false"


def _is_one_of(name: str, values: Sequence[str | None]) -> str:
    given = sorted({value for value in values if value is not None})
    condition = f"{name} IN ({', '.join(given)})" if given else "false"
    return f"({condition} OR {name} IS NULL)" if None in values else condition


def literal(value: Any) -> str | None:
    """Return SQL for a value; None for NULL. Raises ``TypeError`` for other types than text, numbers and instants."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case datetime():
            micros = (value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
            return f"timestamp_micros({micros})"
        case date():
            return f"DATE'{value.isoformat()}'"
        case _:
            raise TypeError(f"{type(value).__name__} has no exact literal in SQL")
