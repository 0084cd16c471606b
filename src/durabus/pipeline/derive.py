"""Bring derived tables up to date: only the rows whose input changed are made again."""

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
"""By name: the table, what makes it, and the actions it is made of, if not of all."""


def update_silver(lake: Lake, name: str) -> int:
    """Make the rows again whose events have new entries. Returns how many entries were new.

    The table's own ``last_seq`` says what it has seen, so data and progress are one commit: a run that is killed leaves
    the table as it was, and repeating a run changes nothing.
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
    """Make the whole table again from bronze. Returns the number of entries read."""
    table, transform, _ = TRANSFORMS[name]
    log = lake.read(EVENT_LOG.name)
    lake.overwrite(transform(log), table.name, table.properties)
    return log.count()


def _entries_of(log: DataFrame, new: DataFrame, oldest: date | None) -> DataFrame:
    """Every entry of the events that ``new`` speaks of; none lies before the day on which the oldest was published."""
    touched = new.select("id").distinct()
    # A damaged entry may have no day.
    since = log if oldest is None else log.where((F.col("day") >= F.lit(oldest)) | F.col("day").isNull())
    return since.join(touched, "id", "left_semi")


FEW = 100_000
"""Changed events whose keys are sent to every task: the driver holds them for that."""
_ENDED = "ended_at IS NOT NULL"


def update_projection(lake: Lake, projection: Projection, *, seen: int | None) -> int:
    """Make the keys again whose events changed after the entry ``seen``; None builds all. Returns how many events.

    A run that is killed before its progress is written is repeated: it makes the same keys again, with the same result.
    """
    if seen is None or not lake.exists(projection.table):
        return rebuild_projection(lake, projection)
    events = lake.read(EVENTS.name)
    changed = events.where((F.col("last_seq") > seen) & of_types(projection.types))
    count = changed.count()
    if count:
        # Asked for twice, made once.
        keys = with_keys(changed, projection).select(*projection.key).distinct().localCheckpoint()
        of_keys = with_keys(events.where(_ENDED).where(of_types(projection.types)), projection)
        sent = F.broadcast(keys) if count <= FEW else keys
        touched = of_keys.join(sent, list(projection.key), "left_semi")
        lake.merge(projection.rows(touched), projection.table, tuple(projection.key), of=keys)
    return count


def rebuild_projection(lake: Lake, projection: Projection) -> int:
    """Make all of it again, and swap it in with one commit. Returns of how many events."""
    lake.overwrite(all_rows(lake, projection), projection.table, MERGED)
    return _ended_events(lake, projection).count()


def all_rows(lake: Lake, projection: Projection) -> DataFrame:
    """The rows of a projection, made from the start."""
    return projection.rows(with_keys(_ended_events(lake, projection), projection))


def _ended_events(lake: Lake, projection: Projection) -> DataFrame:
    return lake.read(EVENTS.name).where(_ENDED).where(of_types(projection.types))


def with_keys(events: DataFrame, projection: Projection) -> DataFrame:
    """The events with the projection's key as columns; without those that have none."""
    keyed = events.withColumns({name: F.expr(expression) for name, expression in projection.key.items()})
    return keyed.dropna(subset=list(projection.key))


def watermarks(lake: Lake) -> dict[tuple[str, int | None], int]:
    """By step and version: the ``seq`` up to which it has seen everything. Absent: it never ran to its end."""
    if not lake.exists(RUNS.name):
        return {}
    done = lake.read(RUNS.name).where(F.col("error").isNull() & F.col("watermark").isNotNull())
    rows = done.groupBy("step", "version").agg(F.max("watermark").alias("watermark")).collect()
    return {(row["step"], row["version"]): row["watermark"] for row in rows}


SHORTEST = 7.0
"""Days. Delta refuses less: another job may still read such files, or write files that it has not committed yet."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """How many files a table's newest version had, and has."""

    name: str
    before: int
    after: int


def compact(lake: Lake, *, keep_days: float, now: datetime, wait: float = 0.0) -> list[Compacted]:
    """Every table of the lake. Versions of the last ``keep_days`` stay readable.

    Raises ``PipelineError`` if a run has the lake for longer than ``wait`` seconds.
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
    if detail["createdAt"].astimezone(UTC) < now - timedelta(days=keep_days):  # a younger one has nothing that old
        lake.vacuum(name, hours=24 * keep_days)
    return Compacted(name=name, before=before, after=after)
