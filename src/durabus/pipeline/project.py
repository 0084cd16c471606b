"""Keep projections up to date: incrementally by key, or all of it again."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, of_types
from durabus.pipeline.tables import EVENTS, MERGED, RUNS

FEW = 100_000
"""Changed events whose keys are sent to every task: the driver holds them for that."""
_ENDED = "ended_at IS NOT NULL"


def update_projection(lake: Lake, projection: Projection, *, seen: int | None) -> int:
    """Make the keys again whose events changed after the entry ``seen``; None builds all. Answers how many events.

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
    """Make all of it again, and swap it in with one commit. Answers of how many events."""
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
