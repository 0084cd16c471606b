"""``gold.activity``: what happened in each minute, hour and day. Pure transforms of ``bronze.event_log``.

Each log entry adds to the periods of its instant and never changes what earlier entries have added. So a table plus
the entries that it lacks is the table of all entries: an update reads new entries and the periods that they touch.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.facts import facts
from durabus.pipeline.histograms import percentile_ms
from durabus.pipeline.schema import ACTIVITY, COUNTERS, HISTOGRAMS, PERCENTILES

PERIODS = ("minute", "hour", "day")
"""The values of the column ``step``."""
_KEY = ACTIVITY.key
_FINE = ("facet", "bus", "type", "name", "metric", "class")


def activity(log: DataFrame, parents: DataFrame | None) -> DataFrame:
    """Return ``gold.activity`` of a log. ``parents`` are the rows of ``parents_of``; None if no entry has a parent."""
    return as_rows(changes(log, parents))


def changes(log: DataFrame, parents: DataFrame | None, *, after: int = -1) -> DataFrame:
    """Return what the entries after ``after`` add to the rows of ``gold.activity``. A row may occur several times.

    ``log`` has all entries of an event or none.
    """
    minutes = _summed(facts(log, parents, after=after), "since", *_FINE)
    periods = F.array(
        *(F.struct(F.lit(one).alias("step"), F.date_trunc(one, "since").alias("since")) for one in PERIODS)
    )
    return minutes.select(
        F.inline(periods), *_FINE, *(name for name in minutes.columns if name not in ("since", *_FINE))
    )


def parents_of(published: DataFrame) -> DataFrame:
    """Return id, type and instant of the events of these PUBLISHED entries."""
    return published.groupBy("event_id").agg(
        F.min_by("type", "seq").alias("type"), F.min("created_at").alias("published_at")
    )


def as_rows(added: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return rows of ``gold.activity`` from changes, added to the rows of ``before``."""
    if before is not None:
        added = added.unionByName(_as_changes(before))
    added = _summed(added, "step", "since", *_FINE)
    entry = "named_struct('from_us', class, 'count', durations)"
    histograms = [
        F.sort_array(F.collect_list(F.expr(f"CASE WHEN metric = '{name}' THEN {entry} END"))).alias(name)
        for name in HISTOGRAMS
    ]
    found = _summed(added, *_KEY, more=histograms)
    percentiles = [
        percentile_ms(name, share / 100).alias(f"{name}_p{share}_ms") for name in HISTOGRAMS for share in PERCENTILES
    ]
    example = [F.col("sample.text").alias("example"), F.col("sample.id").alias("example_event_id")]
    return found.select("*", *percentiles, *example).select(*ACTIVITY.columns)


def _as_changes(rows: DataFrame) -> DataFrame:
    """Return rows of ``gold.activity`` as changes: one row with the counters, and one per class of each histogram."""
    counts = "array(named_struct('metric', CAST(NULL AS STRING), 'class', CAST(NULL AS BIGINT), 'durations', 0L))"
    classes = [
        f"transform({name}, one -> named_struct('metric', '{name}', 'class', one.from_us, 'durations', one.count))"
        for name in HISTOGRAMS
    ]
    sample = "named_struct('seq', last_seq, 'text', example, 'id', example_event_id)"
    return rows.select("*", F.expr(f"inline(concat({', '.join([counts, *classes])}))")).select(
        *("step", "since", *_FINE, "durations"),
        *(F.expr(f"CASE WHEN metric IS NULL THEN {name} ELSE 0L END").alias(name) for name in COUNTERS),
        *("first_at", "last_at"),
        F.expr(f"CASE WHEN facet = 'error' THEN {sample} END").alias("sample"),
        "last_seq",
    )


def _summed(rows: DataFrame, *key: str, more: Sequence[Column] = ()) -> DataFrame:
    return rows.groupBy(*key).agg(
        F.sum("durations").alias("durations"),
        *(F.sum(name).alias(name) for name in COUNTERS),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.max("sample").alias("sample"),
        F.max("last_seq").alias("last_seq"),
        *more,
    )
