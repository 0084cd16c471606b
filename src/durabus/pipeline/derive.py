"""Updates derived tables: only the rows whose input has changed are computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.lake import Lake
from durabus.pipeline.lake_lock import alone
from durabus.pipeline.news import News
from durabus.pipeline.projections import Projection, of_types
from durabus.pipeline.schema import ATTEMPTS, EVENT_LOG, EVENTS, MERGED, RUNS, Table
from durabus.pipeline.silver import OF_ATTEMPTS, attempts, events
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.upcasts import upcasted_or_failed
from durabus.pipeline.upserting import of_keys, upsert

Transform = Callable[[DataFrame], DataFrame]
_SEEN = "seen"
TRANSFORMS: dict[str, tuple[Table, Transform, list[str] | None]] = {
    EVENTS.name: (EVENTS, events, None),
    ATTEMPTS.name: (ATTEMPTS, attempts, OF_ATTEMPTS),
}
"""The table of each name, its transform, and the actions that it uses; None for all actions."""


def update_silver(lake: Lake, name: str, news: News | None = None) -> int:
    """Compute the rows of events that have new entries. Returns the number of new entries.

    The column ``last_seq`` says which entries the table has seen, so data and progress are one commit. A killed run
    leaves the table unchanged, and a repeated run changes nothing. ``news`` are the entries that this run has added to
    bronze; a table that has not seen all entries before them does without.
    """
    table, transform, actions = TRANSFORMS[name]
    end = bronze_end(lake).rows
    seen = _seen(lake, table)
    if seen is None:  # absent, empty, or of an older durabus
        return rebuild_silver(lake, name)
    if seen == end - 1:
        return 0
    if news is not None and news.first_seq <= seen + 1:
        count = _merge_news(lake, table, transform, actions, news, fresh=news.first_seq == seen + 1 and not news.older)
    else:
        count = merge_entries(lake, name, F.col("seq") > seen)
    lake.memory.keep(name, _SEEN, end - 1)
    return count


def _seen(lake: Lake, table: Table) -> int | None:
    """Return the last ``seq`` that a table has seen; None if it must be computed anew."""
    known: int | None = lake.memory.get(table.name, _SEEN)
    if known is not None:
        return known
    if not lake.exists(table.name) or lake.read(table.name).columns != list(table.columns):
        return None
    newest = lake.value(table.name, "max(last_seq)")
    return None if newest is None else int(newest)


def _merge_news(
    lake: Lake, table: Table, transform: Transform, actions: Sequence[str] | None, news: News, *, fresh: bool
) -> int:
    """Write the rows of the events that have new entries. If they are ``fresh``, the table has no row of them yet."""
    count = len(news.table) if actions is None else sum(one in actions for one in news.table["action"].to_pylist())
    if not count:
        return 0
    rows = news.events if table is EVENTS else transform(news.histories)
    condition = of_keys(pa.table({"id": pa.array(news.ids, pa.int64())}))
    if fresh:
        lake.append(rows.coalesce(1), table)
    elif condition is not None:
        lake.replace_where(rows.coalesce(1), table.name, condition)
    else:
        lake.merge(rows, table.name, table.key, within=news.within)
    return count


def merge_entries(lake: Lake, name: str, condition: Column) -> int:
    """Compute the rows of the events with entries that meet a condition. Returns the number of these entries."""
    table, transform, actions = TRANSFORMS[name]
    log = lake.read(EVENT_LOG.name)
    new = log.where(condition)
    if actions is not None:
        new = new.where(F.col("action").isin(actions))
    found = new.agg(F.count("*"), F.min(F.to_date("created_at"))).first()
    count, oldest = (0, None) if found is None else (int(found[0]), found[1])
    if count:
        lake.merge(transform(entries_of(log, new, oldest)), table.name, table.key)
    return count


def rebuild_silver(lake: Lake, name: str) -> int:
    """Compute the whole table from bronze. Returns the number of entries read."""
    table, transform, _ = TRANSFORMS[name]
    end = bronze_end(lake).rows
    log = lake.read(EVENT_LOG.name)
    # Each file then has a range of ids of its own, so that a merge of a few events reads few files.
    lake.overwrite(transform(log.repartitionByRange("id")), table.name, table.properties)
    lake.memory.keep(name, _SEEN, end - 1)
    return end


def entries_of(log: DataFrame, new: DataFrame, oldest: date | None) -> DataFrame:
    """Return all entries of the events in ``new``. ``oldest`` is the day on which the oldest of them was published."""
    touched = new.select("id").distinct()
    # A damaged entry may have no day.
    since = log if oldest is None else log.where((F.col("day") >= F.lit(oldest)) | F.col("day").isNull())
    return since.join(touched, "id", "left_semi")


FINGERPRINT = "durabus.fingerprint"
"""The property of a declared table with the fingerprint of what made it."""
FEW = 100_000
"""Maximum number of changed events whose keys Spark sends to every task. The driver keeps these keys in memory."""


def update_projection(lake: Lake, projection: Projection, *, seen: int | None, news: News | None = None) -> int:
    """Compute the keys whose events changed after the entry ``seen``; None: all keys. Returns the number of events.

    If a run is killed before it has noted its progress, the next run computes the same keys with the same result. A
    projection that differs from the one that made the table is rebuilt, because one table must not have rows of two
    formulas. ``news`` are the entries that this run has added to bronze; a projection that has not seen all entries
    before them does without.
    """
    if seen is None or not is_made_by(lake, projection):
        return rebuild_projection(lake, projection)
    if news is None or news.first_seq > seen + 1:
        return update_keys(lake, projection, F.col("last_seq") > seen)
    changed = upcasted_or_failed(news.events.where(of_types(projection.types)))
    found = _expressed(changed, projection).select(*projection.key).toArrow()
    if len(found):
        few = found.group_by(list(projection.key)).aggregate([]).drop_null()
        keys = lake.spark.createDataFrame(few)
        upsert(lake, _rows_of(lake, projection, F.broadcast(keys)), projection.table, tuple(projection.key), few)
        keep_maker(lake, projection)
    return len(found)


def update_keys(lake: Lake, projection: Projection, condition: Column) -> int:
    """Compute the keys of the events that meet a condition. Returns the number of these events."""
    changed = lake.read(EVENTS.name).where(condition & of_types(projection.types))
    count = changed.count()
    if count:
        # The query below uses the keys twice; the checkpoint computes them once.
        keys = with_keys(upcasted_or_failed(changed), projection).select(*projection.key).distinct().localCheckpoint()
        rows = _rows_of(lake, projection, F.broadcast(keys) if count <= FEW else keys)
        _merge_keys(lake, projection, rows, keys)
    return count


def _rows_of(lake: Lake, projection: Projection, keys: DataFrame) -> DataFrame:
    used = with_keys(_used_events(lake, projection), projection)
    return projection.rows(used.join(keys, list(projection.key), "left_semi"))


def _merge_keys(lake: Lake, projection: Projection, rows: DataFrame, keys: DataFrame) -> None:
    lake.merge(rows, projection.table, tuple(projection.key), of=keys)
    keep_maker(lake, projection)


class Declared(Protocol):
    """A table that the user has declared."""

    @property
    def table(self) -> str:
        """The name of the table."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of what computes the rows."""
        ...


def is_made_by(lake: Lake, declared: Declared) -> bool:
    """Return whether the table exists and this declaration, not a changed one of the same name, made it."""
    if not lake.exists(declared.table):
        return False
    known = lake.memory.get(declared.table, FINGERPRINT)
    if known is None:
        known = lake.detail(declared.table)["properties"].get(FINGERPRINT)
        lake.memory.keep(declared.table, FINGERPRINT, known)
    return bool(known == declared.fingerprint)


def keep_maker(lake: Lake, declared: Declared) -> None:
    """Keep in memory that this declaration has made the newest commit of its table."""
    lake.memory.keep(declared.table, FINGERPRINT, declared.fingerprint)


def rebuild_projection(lake: Lake, projection: Projection) -> int:
    """Compute the whole projection and replace the table in one commit. Returns the number of events."""
    rows = all_rows(lake, projection).persist()  # it is used twice
    try:
        _check_key(rows, projection)
        lake.overwrite(rows, projection.table, MERGED | {FINGERPRINT: projection.fingerprint})
    finally:
        rows.unpersist()
    keep_maker(lake, projection)
    return _used_events(lake, projection).count()


def _check_key(rows: DataFrame, projection: Projection) -> None:
    """Raise ``PipelineError`` if two rows have the same key: no later update could tell which of them to replace."""
    key = list(projection.key)
    absent = [name for name in key if name not in rows.columns]
    if absent:
        raise PipelineError(f"its rows lack the key column {absent[0]}: select it, or take it out of key=")
    twice = rows.groupBy(*key).count().where("count > 1").first()
    if twice is not None:
        values = ", ".join(f"{name}={twice[name]!r}" for name in key)
        raise PipelineError(
            f"its key is not unique: {twice['count']} rows have {values}; group by the key, or add columns to key="
        )


def all_rows(lake: Lake, projection: Projection) -> DataFrame:
    """Return the rows of a projection, computed from all events."""
    return projection.rows(with_keys(_used_events(lake, projection), projection))


def _used_events(lake: Lake, projection: Projection) -> DataFrame:
    events = lake.read(EVENTS.name).where(of_types(projection.types))
    return upcasted_or_failed(events if projection.live else events.where("ended_at IS NOT NULL"))


def with_keys(events: DataFrame, projection: Projection) -> DataFrame:
    """Return the events with the columns of the projection's key. Events without a key are left out."""
    return _expressed(events, projection).dropna(subset=list(projection.key))


def _expressed(events: DataFrame, projection: Projection) -> DataFrame:
    return events.withColumns({name: F.expr(expression) for name, expression in projection.key.items()})


Watermarks = dict[tuple[str, int | None], int]
WATERMARKS = "watermarks"


def watermarks(lake: Lake) -> Watermarks:
    """Return the ``seq`` up to which each step and version has seen all entries, without steps that never completed.

    The newest line counts: after a rollback, a table has seen less than before.
    """
    if not lake.exists(RUNS.name):
        return {}
    known: Watermarks | None = lake.memory.get(RUNS.name, WATERMARKS)
    if known is not None:
        return known
    done = lake.read(RUNS.name).where(F.col("error").isNull() & F.col("watermark").isNotNull())
    rows = done.groupBy("step", "version").agg(F.max_by("watermark", "finished_at").alias("watermark")).collect()
    found = {(row["step"], row["version"]): row["watermark"] for row in rows}
    lake.memory.keep(RUNS.name, WATERMARKS, found)
    return found


SHORTEST = 7.0
"""Minimum number of days to keep. Delta refuses less, because another job may still read or commit younger files."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The number of files of a table before and after its compaction."""

    name: str
    before: int
    after: int


def compact(
    lake: Lake, *, keep_days: float, now: datetime, session: StoreSession | None = None, wait: float = 0.0
) -> list[Compacted]:
    """Compact every table of the lake. Versions of the last ``keep_days`` stay readable.

    Raises ``PipelineError`` if a run uses the lake for longer than ``wait`` seconds.
    """
    if keep_days < SHORTEST:
        raise ConfigurationError(f"keep_days={keep_days:g}: must be {SHORTEST:g} or more")
    with alone(lake.path, session, wait=wait):
        return [_compact(lake, name, keep_days, now) for name in lake.tables()]


def _compact(lake: Lake, name: str, keep_days: float, now: datetime) -> Compacted:
    detail = lake.detail(name)
    before = after = int(detail["numFiles"])
    if before > 1:
        lake.compact(name)
        after = int(lake.detail(name)["numFiles"])
    if detail["createdAt"].astimezone(UTC) < now - timedelta(days=keep_days):  # a younger table has no files that old
        lake.vacuum(name, hours=24 * keep_days)
    return Compacted(name=name, before=before, after=after)
