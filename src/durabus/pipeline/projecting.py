"""Brings projections up to date: only the rows of changed keys, where ``key_tracing`` proves that this is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import PipelineError
from durabus.pipeline.derive import FINGERPRINT, is_made_by, keep_maker
from durabus.pipeline.input_tables import InputTables
from durabus.pipeline.key_tracing import KeyTrace, UpdateMode
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import News
from durabus.pipeline.projections import Projection
from durabus.pipeline.schema import MERGED
from durabus.pipeline.upserting import Addition, of_keys, upsert

INPUTS = "durabus.inputs"
"""The property of a projection's table with the versions of the inputs that it was made of, as JSON."""
FEW = 100_000
"""Maximum number of changed rows whose keys Spark sends to every task. The driver keeps these keys in memory."""


def update_projection(
    lake: Lake,
    projection: Projection,
    *,
    seen: int | None,
    news: News | None = None,
    inputs: InputTables | None = None,
) -> int:
    """Compute the rows that changes after the entry ``seen`` affect; None: all. Returns the number of changed rows.

    If a run is killed before it has noted its progress, the next run computes the same rows with the same result. All
    rows are computed anew if the projection differs from the one that made the table, because one table must not have
    rows of two formulas, and if an input without a feed has changed. ``news`` are the entries that this run has added
    to bronze; a projection that has not seen all entries before them does without.
    """
    tables = inputs or InputTables(lake)
    if seen is None or not is_made_by(lake, projection) or not has_read(lake, projection, tables):
        return rebuild_projection(lake, projection, tables)
    trace = tables.trace(projection)
    # Added twice, an entry would count twice. So the table must lack all of these entries, and none before them.
    if trace.addition is not None and news is not None and news.first_seq == seen + 1:
        added = tables.added(projection, news)
        if added is not None:
            return _add(lake, projection, trace.addition, *added)
    recent = news if news is not None and news.first_seq <= seen + 1 else None

    def changed(name: str) -> DataFrame:
        return tables.changed(name, projection, seen=seen, news=recent)

    return _update(lake, projection, tables, changed, few=recent is not None)


def update_since(lake: Lake, projection: Projection, since: datetime, inputs: InputTables) -> int:
    """Compute the rows that changes at or after an instant affect. Returns the number of changed rows."""
    trace = inputs.trace(projection)
    without = [name for name in trace.sources if (feed := inputs.feed(name)) is None or feed.since is None]
    if trace.mode is UpdateMode.FULL or without:
        why = trace.why if not without else f"{without[0]} has no instant of the last change"
        raise PipelineError(f"{projection.name} cannot be rebuilt in part ({why}): leave out --since")

    def changed(name: str) -> DataFrame:
        feed = inputs.feed(name)
        instant = F.expr("" if feed is None or feed.since is None else feed.since)
        return inputs.matching(name, projection, instant >= F.lit(since))

    return _update(lake, projection, inputs, changed, few=False)


def has_read(lake: Lake, projection: Projection, inputs: InputTables) -> bool:
    """Return whether the table was made of the present versions of those inputs that have no feed."""
    versions = inputs.versions(projection)
    if not versions:
        return True
    known = lake.memory.get(projection.table, INPUTS)
    if known is None:
        known = lake.detail(projection.table)["properties"].get(INPUTS)
        lake.memory.keep(projection.table, INPUTS, known)
    return bool(known == _as_text(versions))


def rebuild_projection(lake: Lake, projection: Projection, inputs: InputTables | None = None) -> int:
    """Compute the whole projection and replace the table in one commit. Returns the number of rows read."""
    tables = inputs or InputTables(lake)
    versions = tables.versions(projection)
    read = {name: tables.whole(name, projection, versions) for name in projection.inputs}
    with _checked(projection.rows(*read.values()), projection) as rows:
        properties = MERGED | {FINGERPRINT: projection.fingerprint, INPUTS: _as_text(versions)}
        lake.overwrite(rows, projection.table, properties)
    _keep(lake, projection, versions)
    return sum(one.count() for one in read.values())


def all_rows(lake: Lake, projection: Projection, inputs: InputTables | None = None) -> DataFrame:
    """Return the rows of a projection, computed from all rows of its inputs."""
    tables = inputs or InputTables(lake)
    versions = tables.versions(projection)
    return projection.rows(*(tables.whole(name, projection, versions) for name in projection.inputs))


def _update(
    lake: Lake, projection: Projection, inputs: InputTables, changed: Callable[[str], DataFrame], *, few: bool
) -> int:
    """Compute the rows that these changes affect. With ``few`` changes, the driver keeps them in memory."""
    trace = inputs.trace(projection)
    if trace.mode is UpdateMode.FULL:
        return rebuild_projection(lake, projection, inputs)
    versions = inputs.versions(projection)
    keys, count, known = _changed_keys(lake, trace, changed, few=few)
    if not count:
        return 0
    if trace.mode is UpdateMode.APPEND:
        (name,) = projection.inputs
        rows = projection.rows(changed(name))
    else:
        rows = _rows_of(projection, trace, inputs, versions, F.broadcast(keys) if count <= FEW else keys)
    key = tuple(projection.key)
    with _checked(rows, projection, few=few) as made:
        if known is not None and trace.mode is not UpdateMode.APPEND and set(trace.by) == set(key):
            upsert(lake, made, projection.table, key, known.select(list(key)))
        else:
            lake.merge(made, projection.table, key, of=_replaced(lake, projection, trace, made, keys))
    _keep(lake, projection, versions)
    return count


def _add(lake: Lake, projection: Projection, addition: Addition, new: DataFrame, count: int) -> int:
    """Add new rows of the input to the rows of the projection. Returns ``count``, the number of changed rows."""
    parts = addition.parts_of_new(new)
    made = parts.toArrow()
    if not len(made):
        return count
    keys = made.select(addition.key)
    condition = of_keys(keys)
    table = lake.read(projection.table)
    if condition is None:
        of = F.broadcast(lake.spark.createDataFrame(keys))
        before = _having(table, [F.col(f"`{column}`") for column in addition.key], of)
    else:
        before = table.where(condition)
    rows = addition.rows(lake.spark.createDataFrame(made, parts.schema).union(addition.parts_of_rows(before)))
    if condition is None:
        lake.merge(rows, projection.table, addition.key)
    else:
        lake.replace_where(rows.coalesce(1), projection.table, condition)
    keep_maker(lake, projection)
    return count


def _changed_keys(
    lake: Lake, trace: KeyTrace, changed: Callable[[str], DataFrame], *, few: bool
) -> tuple[DataFrame, int, pa.Table | None]:
    """Return the distinct values of ``trace.by`` in changed rows, and the number of these rows.

    With ``few`` changes, the third value has these values in the driver's memory.
    """
    found = reduce(
        DataFrame.unionByName,
        (
            changed(name).select(*(F.expr(text).alias(column) for column, text in zip(trace.by, texts, strict=True)))
            for name, texts in trace.sources.items()
        ),
    )
    if few:
        known = found.toArrow()
        count = len(known)
        known = known.group_by(list(trace.by)).aggregate([]).drop_null()
        return lake.spark.createDataFrame(known, found.schema), count, known
    count = found.count()
    # The query uses the keys twice; the checkpoint computes them once.
    return (found.distinct().dropna().localCheckpoint() if count else found), count, None


def _rows_of(
    projection: Projection, trace: KeyTrace, inputs: InputTables, versions: Mapping[str, int], keys: DataFrame
) -> DataFrame:
    """Return the rows of some keys. Only those rows of the inputs are read that the keys can depend on."""
    read = []
    for name in projection.inputs:
        rows = inputs.whole(name, projection, versions)
        texts = trace.sources.get(name)
        read.append(rows if texts is None else _having(rows, [F.expr(text) for text in texts], keys))
    return _having(projection.rows(*read), [F.col(f"`{column}`") for column in trace.by], keys)


def _having(rows: DataFrame, values: list[Column], keys: DataFrame) -> DataFrame:
    """Return the rows for which these expressions are one of the keys."""
    wanted = keys.toDF(*(f"durabus_key_{n}" for n in range(len(values))))
    same = reduce(lambda a, b: a & b, (one == F.col(f"durabus_key_{n}") for n, one in enumerate(values)))
    return rows.join(wanted, same, "left_semi")


def _replaced(
    lake: Lake, projection: Projection, trace: KeyTrace, rows: DataFrame, keys: DataFrame
) -> DataFrame | None:
    """Return the keys whose rows the new rows replace; None if no row can go away."""
    if trace.mode is UpdateMode.APPEND:
        return None
    key = list(projection.key)
    if set(trace.by) == set(key):
        return keys
    old = _having(lake.read(projection.table), [F.col(f"`{column}`") for column in trace.by], keys)
    return old.select(*key).unionByName(rows.select(*key)).distinct()


def _keep(lake: Lake, projection: Projection, versions: Mapping[str, int]) -> None:
    keep_maker(lake, projection)
    lake.memory.keep(projection.table, INPUTS, _as_text(versions))


def _as_text(versions: Mapping[str, int]) -> str:
    return msgspec.json.encode(versions, order="sorted").decode()


@contextmanager
def _checked(rows: DataFrame, projection: Projection, *, few: bool = False) -> Iterator[DataFrame]:
    """Yield the rows, computed once. With ``few``, the driver keeps them.

    Raises ``PipelineError`` if two rows have the same key: no later update could tell which of them to replace.
    """
    key = list(projection.key)
    if few:
        table = rows.toArrow()
        counts = table.group_by(key).aggregate([([], "count_all")])
        _refuse_double(key, next((one for one in counts.to_pylist() if one["count_all"] > 1), None))
        yield rows.sparkSession.createDataFrame(table, rows.schema)
        return
    kept = rows.persist()
    try:
        found = kept.groupBy(*key).agg(F.count("*").alias("count_all")).where("count_all > 1").first()
        _refuse_double(key, None if found is None else found.asDict())
        yield kept
    finally:
        kept.unpersist()


def _refuse_double(key: list[str], twice: dict[str, Any] | None) -> None:
    if twice is not None:
        values = ", ".join(f"{name}={twice[name]!r}" for name in key)
        raise PipelineError(
            f"its key is not unique: {twice['count_all']} rows have {values}; group by the key, or add columns to key="
        )
