"""Keep projections up to date: incrementally by key, or all of it again."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, of_types
from durabus.pipeline.tables import EVENTS, RUNS

_ENDED = "ended_at IS NOT NULL"


class Projected(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: up to which ``seq``, and how many changed events it saw."""

    watermark: int
    events: int
    rebuilt: bool = False


def update_projection(lake: Lake, projection: Projection) -> Projected:
    """Make the keys again whose events changed since the last run; the first run of a version builds all.

    A run that is killed before its progress is written is repeated: it makes the same keys again, with the same result.
    """
    seen = watermark(lake, projection.name, projection.version)
    if seen is None or not lake.exists(projection.table):
        return rebuild_projection(lake, projection)
    newest, events = _newest(lake), lake.read(EVENTS.name)
    changed = events.where((F.col("last_seq") > seen) & of_types(projection.types))
    count = changed.count() if newest > seen else 0
    if count:
        # Few and asked for three times: made once.
        keys = with_keys(changed, projection).select(*projection.key).distinct().localCheckpoint()
        of_keys = with_keys(events.where(_ENDED).where(of_types(projection.types)), projection)
        touched = of_keys.join(F.broadcast(keys), list(projection.key), "left_semi")
        lake.merge(projection.rows(touched).localCheckpoint(), projection.table, tuple(projection.key), gone=keys)
    return Projected(watermark=newest, events=count)


def rebuild_projection(lake: Lake, projection: Projection) -> Projected:
    """Make all of it again, and swap it in with one commit."""
    newest = _newest(lake)
    events = lake.read(EVENTS.name).where(_ENDED).where(of_types(projection.types))
    lake.overwrite(projection.rows(with_keys(events, projection)), projection.table)
    return Projected(watermark=newest, events=events.count(), rebuilt=True)


def with_keys(events: DataFrame, projection: Projection) -> DataFrame:
    """The events with the projection's key as columns; without those that have none."""
    keyed = events.withColumns({name: F.expr(expression) for name, expression in projection.key.items()})
    return keyed.dropna(subset=list(projection.key))


def watermark(lake: Lake, step: str, version: int | None = None) -> int | None:
    """The ``seq`` up to which a step has seen everything; None if this version of it never ran to its end."""
    if not lake.exists(RUNS.name):
        return None
    done = lake.read(RUNS.name).where(
        (F.col("step") == step) & F.col("version").eqNullSafe(F.lit(version)) & F.col("error").isNull()
    )
    row = done.agg(F.max("watermark")).first()
    return None if row is None else row[0]


def _newest(lake: Lake) -> int:
    newest = lake.value(EVENTS.name, "max(last_seq)")
    return -1 if newest is None else int(newest)
