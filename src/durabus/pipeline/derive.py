"""Updates derived tables: only the rows whose input has changed are computed again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError
from durabus.pipeline.lake import Lake, lake_lock
from durabus.pipeline.projections import Projection, of_types
from durabus.pipeline.schema import ATTEMPTS, EVENT_LOG, EVENTS, MERGED, RUNS, Table
from durabus.pipeline.silver import OF_ATTEMPTS, attempts, events

TRANSFORMS: dict[str, tuple[Table, Callable[[DataFrame], DataFrame], list[str] | None]] = {
    EVENTS.name: (EVENTS, events, None),
    ATTEMPTS.name: (ATTEMPTS, attempts, OF_ATTEMPTS),
}
"""The table of each name, its transform, and the actions that it uses; None for all actions."""


def update_silver(lake: Lake, name: str) -> int:
    """Compute the rows of events that have new entries. Returns the number of new entries.

    The column ``last_seq`` says which entries the table has seen, so data and progress are one commit. A killed run
    leaves the table unchanged, and a repeated run changes nothing.
    """
    table, transform, actions = TRANSFORMS[name]
    seen = lake.value(table.name, "max(last_seq)")
    if seen is None or lake.read(table.name).columns != list(table.columns):  # absent, empty, or of an older durabus
        return rebuild_silver(lake, name)
    log = lake.read(EVENT_LOG.name)
    new = log.where(F.col("seq") > seen)
    if actions is not None:
        new = new.where(F.col("action").isin(actions))
    news = new.agg(F.count("*"), F.min(F.to_date("created_at"))).first()
    count, oldest = (0, None) if news is None else (int(news[0]), news[1])
    if count:
        lake.merge(transform(_entries_of(log, new, oldest)), table.name, table.key)
    return count


def rebuild_silver(lake: Lake, name: str) -> int:
    """Compute the whole table from bronze. Returns the number of entries read."""
    table, transform, _ = TRANSFORMS[name]
    log = lake.read(EVENT_LOG.name)
    lake.overwrite(transform(log), table.name, table.properties)
    return log.count()


def _entries_of(log: DataFrame, new: DataFrame, oldest: date | None) -> DataFrame:
    """Return all entries of the events in ``new``. ``oldest`` is the day on which the oldest of them was published."""
    touched = new.select("id").distinct()
    # A damaged entry may have no day.
    since = log if oldest is None else log.where((F.col("day") >= F.lit(oldest)) | F.col("day").isNull())
    return since.join(touched, "id", "left_semi")


FEW = 100_000
"""Maximum number of changed events whose keys Spark sends to every task. The driver keeps these keys in memory."""
_ENDED = "ended_at IS NOT NULL"


def update_projection(lake: Lake, projection: Projection, *, seen: int | None) -> int:
    """Compute the keys whose events changed after the entry ``seen``; None: all keys. Returns the number of events.

    If a run is killed before it has noted its progress, the next run computes the same keys with the same result.
    """
    if seen is None or not lake.exists(projection.table):
        return rebuild_projection(lake, projection)
    events = lake.read(EVENTS.name)
    changed = events.where((F.col("last_seq") > seen) & of_types(projection.types))
    count = changed.count()
    if count:
        # The query below uses the keys twice; the checkpoint computes them once.
        keys = with_keys(changed, projection).select(*projection.key).distinct().localCheckpoint()
        of_keys = with_keys(events.where(_ENDED).where(of_types(projection.types)), projection)
        sent = F.broadcast(keys) if count <= FEW else keys
        touched = of_keys.join(sent, list(projection.key), "left_semi")
        lake.merge(projection.rows(touched), projection.table, tuple(projection.key), of=keys)
    return count


def rebuild_projection(lake: Lake, projection: Projection) -> int:
    """Compute the whole projection and replace the table in one commit. Returns the number of events."""
    lake.overwrite(all_rows(lake, projection), projection.table, MERGED)
    return _ended_events(lake, projection).count()


def all_rows(lake: Lake, projection: Projection) -> DataFrame:
    """Return the rows of a projection, computed from all events."""
    return projection.rows(with_keys(_ended_events(lake, projection), projection))


def _ended_events(lake: Lake, projection: Projection) -> DataFrame:
    return lake.read(EVENTS.name).where(_ENDED).where(of_types(projection.types))


def with_keys(events: DataFrame, projection: Projection) -> DataFrame:
    """Return the events with the columns of the projection's key. Events without a key are left out."""
    keyed = events.withColumns({name: F.expr(expression) for name, expression in projection.key.items()})
    return keyed.dropna(subset=list(projection.key))


def watermarks(lake: Lake) -> dict[tuple[str, int | None], int]:
    """Return the ``seq`` up to which each step and version has seen all entries, without steps that never completed."""
    if not lake.exists(RUNS.name):
        return {}
    done = lake.read(RUNS.name).where(F.col("error").isNull() & F.col("watermark").isNotNull())
    rows = done.groupBy("step", "version").agg(F.max("watermark").alias("watermark")).collect()
    return {(row["step"], row["version"]): row["watermark"] for row in rows}


SHORTEST = 7.0
"""Minimum number of days to keep. Delta refuses less, because another job may still read or commit younger files."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The number of files of a table before and after its compaction."""

    name: str
    before: int
    after: int


def compact(lake: Lake, *, keep_days: float, now: datetime, wait: float = 0.0) -> list[Compacted]:
    """Compact every table of the lake. Versions of the last ``keep_days`` stay readable.

    Raises ``PipelineError`` if a run uses the lake for longer than ``wait`` seconds.
    """
    if keep_days < SHORTEST:
        raise ConfigurationError(f"keep_days={keep_days:g}: must be {SHORTEST:g} or more")
    with lake_lock(lake.path, wait=wait):
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
