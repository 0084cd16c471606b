"""The tables for operators: what happened over time, which workers are stale, and how the SLOs stand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import Action
from durabus.pipeline.activity import activity, as_rows, changes, parents_of
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.derive import entries_of
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import News
from durabus.pipeline.schema import ACTIVITY, ATTEMPTS, EVENT_LOG
from durabus.pipeline.slos import Slo, write_slos

STALE_AFTER = 300.0
"""Seconds after which a claim that has not ended counts as stale."""
STALE = "gold.stale_workers"
_SEEN, _STALE_ROWS = "seen", "rows"
_MOST_PARENTS = 1_000
"""Maximum number of parents that a query names one by one, so that Delta can skip files."""
_MOST_PERIODS = 100
"""Maximum number of periods that an update names one by one. More are named by the first and the last one."""


def analyze(
    lake: Lake, as_of: float, stale_after: float = STALE_AFTER, *, slos: Sequence[Slo] = (), news: News | None = None
) -> int:
    """Bring the tables of analytics up to date. Returns the number of new entries.

    ``as_of`` is the current time of the store, in seconds. ``news`` are the entries that the run has added to bronze,
    if they are few.
    """
    now = F.timestamp_micros(F.lit(int(as_of * 1e6)))
    stale = stale_workers(lake.read(ATTEMPTS.name), now, stale_after)
    # Spark and Delta spend most of a small table's time on planning and committing, so writing in parallel is faster.
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(_write_stale, lake, stale)
        count = update_activity(lake, news)
        written.result()
    write_slos(lake, slos, as_of)
    return count


def update_activity(lake: Lake, news: News | None = None) -> int:
    """Add the entries to ``gold.activity`` that it lacks. Returns their number.

    The column ``last_seq`` says which entries the table has seen, so data and progress are one commit.
    """
    end = bronze_end(lake).rows
    seen = _seen(lake)
    if seen is None:  # absent, or of an older durabus
        return rebuild_activity(lake)
    if seen < end - 1:
        known = news is not None and news.first_seq <= seen + 1
        _add(lake, news.histories if news is not None and known else _histories(lake, seen), seen)
    lake.memory.keep(ACTIVITY.name, _SEEN, end - 1)
    return end - 1 - seen


def rebuild_activity(lake: Lake) -> int:
    """Compute ``gold.activity`` from bronze. Returns the number of entries read."""
    end = bronze_end(lake).rows
    log = lake.read(EVENT_LOG.name).where(F.col("seq") < end)
    # Each file then has periods of its own, so that an update reads few files.
    rows = activity(log, _parents(lake, log)).repartitionByRange("step", "since")
    lake.overwrite(rows, ACTIVITY.name, ACTIVITY.properties)
    lake.memory.keep(ACTIVITY.name, _SEEN, end - 1)
    return end


def _seen(lake: Lake) -> int | None:
    """Return the last ``seq`` that ``gold.activity`` has seen; None if it must be computed anew."""
    known: int | None = lake.memory.get(ACTIVITY.name, _SEEN)
    if known is not None:
        return known
    if not lake.exists(ACTIVITY.name) or lake.read(ACTIVITY.name).columns != list(ACTIVITY.columns):
        return None
    newest = lake.value(ACTIVITY.name, "max(last_seq)")
    return -1 if newest is None else int(newest)


def _histories(lake: Lake, seen: int) -> DataFrame:
    """Return all entries of the events that have entries after ``seen``."""
    log = lake.read(EVENT_LOG.name)
    new = log.where(F.col("seq") > seen)
    oldest = new.agg(F.min(F.to_date("created_at"))).first()
    return entries_of(log, new, None if oldest is None else oldest[0])


def _add(lake: Lake, log: DataFrame, seen: int) -> None:
    # These are used three times, and there is one per row and class that the new entries touch.
    added = changes(log, _parents(lake, log.where(F.col("seq") > seen)), after=seen).localCheckpoint()
    touched = _touched(added)
    before = lake.read(ACTIVITY.name).where(touched)
    lake.replace_where(as_rows(added, before).coalesce(1), ACTIVITY.name, touched)


def _touched(added: DataFrame) -> str:
    """Return a condition on ``gold.activity`` that the rows of all periods of these changes meet."""
    step, at = "step = '{}'", "timestamp_seconds({})"
    periods = added.select("step", F.unix_seconds("since")).distinct().limit(_MOST_PERIODS + 1).collect()
    if len(periods) <= _MOST_PERIODS:
        by_step: dict[str, list[str]] = {}
        for name, since in periods:
            by_step.setdefault(name, []).append(at.format(since))
        return " OR ".join(
            f"{step.format(name)} AND since IN ({', '.join(sorted(all_))})" for name, all_ in by_step.items()
        )
    bounds = added.groupBy("step").agg(*(F.unix_seconds(bound("since")) for bound in (F.min, F.max))).collect()
    return " OR ".join(
        f"{step.format(name)} AND since BETWEEN {at.format(first)} AND {at.format(last)}"
        for name, first, last in bounds
    )


def _parents(lake: Lake, new: DataFrame) -> DataFrame:
    """Return the events that these entries name as parents. A parent is published before its children."""
    ids = new.where("parent_id IS NOT NULL").select(F.col("parent_id").alias("event_id")).distinct()
    published = lake.read(EVENT_LOG.name).where(F.col("action") == Action.PUBLISHED.value)
    few = [row[0] for row in ids.limit(_MOST_PARENTS + 1).collect()]
    if len(few) <= _MOST_PARENTS:
        return parents_of(published.where(F.col("event_id").isin(few) if few else F.lit(False)))
    return parents_of(published.join(ids, "event_id", "left_semi"))


def stale_workers(attempts: DataFrame, as_of: Column, after: float = STALE_AFTER) -> DataFrame:
    """Return the workers that hold a claim for at least ``after`` seconds at the time ``as_of``."""
    held = (F.unix_micros(as_of) - F.unix_micros("picked_at")) / 1e6
    silent = attempts.where(F.col("outcome").isNull() & (held >= after))
    return silent.groupBy("worker_id", "bus").agg(
        F.count("*").alias("claims"),
        F.count_if(F.col("started_at").isNull()).alias("never_started"),
        F.min("picked_at").alias("oldest_picked_at"),
        F.max(held).alias("oldest_seconds"),
        F.min("event_id").alias("example_event_id"),
    )


def _write_stale(lake: Lake, found: DataFrame) -> None:
    """Write the stale workers, unless the table is known to have these rows. Mostly there are none."""
    rows = found.toArrow()
    known = lake.memory.get(STALE, _STALE_ROWS)
    if known is None or not rows.equals(known):
        lake.overwrite(lake.spark.createDataFrame(rows).coalesce(1), STALE)
        lake.memory.keep(STALE, _STALE_ROWS, rows)
