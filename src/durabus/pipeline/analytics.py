"""The tables for operators: what happened over time, which workers are stale, and how the SLOs stand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import Action
from durabus.pipeline.activity import activity, as_rows, changes, parents_of
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.derive import entries_of, open_attempts
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import News
from durabus.pipeline.schema import ACTIVITY, ATTEMPTS, EVENT_LOG
from durabus.pipeline.slos import Slo, write_slos
from durabus.pipeline.upserting import MOST_KEYS, of_keys

STALE_AFTER = 300.0
"""Seconds after which a claim that has not ended counts as stale."""
STALE = "gold.stale_workers"
_SEEN, _RECENT, _STALE_ROWS = "seen", "recent", "rows"


def analyze(
    lake: Lake, as_of: float, stale_after: float = STALE_AFTER, *, slos: Sequence[Slo] = (), news: News | None = None
) -> int:
    """Bring the tables of analytics up to date. Returns the number of new entries.

    ``as_of`` is the current time of the store, in seconds. ``news`` are the entries that the run has added to bronze,
    if they are few.
    """
    now = F.timestamp_micros(F.lit(int(as_of * 1e6)))
    # Spark and Delta spend most of a small table's time on planning and committing, so writing in parallel is faster.
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(_write_stale, lake, now, stale_after)
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
        if news is not None and news.first_seq <= seen + 1:
            _add_few(lake, news, seen)
        else:
            _add(lake, seen, end)
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


def _add(lake: Lake, seen: int, end: int) -> None:
    """Add the entries after ``seen`` and before ``end`` to the rows of the periods that they touch, in one commit."""
    log = lake.read(EVENT_LOG.name).where(F.col("seq") < end)
    new = log.where(F.col("seq") > seen)
    oldest = new.agg(F.min(F.to_date("created_at"))).first()
    histories = entries_of(log, new, None if oldest is None else oldest[0])
    added = changes(histories, _parents(lake, new), after=seen).localCheckpoint()  # it is used three times
    periods = added.select("step", "since").distinct()
    touched = of_keys(periods.limit(MOST_KEYS + 1).toArrow())
    if touched is None:
        bounds = periods.groupBy("step").agg(*(F.unix_seconds(bound("since")) for bound in (F.min, F.max))).collect()
        touched = " OR ".join(
            f"step = '{step}' AND since BETWEEN timestamp_seconds({first}) AND timestamp_seconds({last})"
            for step, first, last in bounds
        )
    lake.replace_where(as_rows(added, lake.read(ACTIVITY.name).where(touched)), ACTIVITY.name, touched)


class Recent(msgspec.Struct, frozen=True):
    """The rows of the periods that the last run has touched, and the newest period of each step in the table."""

    rows: pa.Table
    newest: dict[str, datetime]


def _add_few(lake: Lake, news: News, seen: int) -> None:
    """Do the same as ``_add`` with entries in the driver's memory.

    Runs in a row touch the same hour and day, so the memory also has the rows of the run before.
    """
    spark = lake.spark
    named = news.table["parent_id"].null_count < len(news.table)
    parents = _parents(lake, news.rows) if named else None
    made = changes(news.histories, parents, after=seen).toArrow()
    added, periods = spark.createDataFrame(made), made.group_by(["step", "since"]).aggregate([])
    touched = of_keys(periods)
    if touched is None:
        _add(lake, seen, news.end)
        return
    recent: Recent | None = lake.memory.get(ACTIVITY.name, _RECENT)
    if recent is None:
        known = lake.read(ACTIVITY.name).groupBy("step").agg(F.max("since").alias("since")).toArrow().to_pylist()
        recent = Recent(pa.table({}), {one["step"]: one["since"] for one in known})
    rows = as_rows(added, _rows_before(lake, recent, periods, touched)).toArrow()
    lake.replace_where(spark.createDataFrame(rows).coalesce(1), ACTIVITY.name, touched)
    newest = dict(recent.newest)
    for one in periods.to_pylist():
        newest[one["step"]] = max(one["since"], newest.get(one["step"], one["since"]))
    lake.memory.keep(ACTIVITY.name, _RECENT, Recent(rows, newest))


def _rows_before(lake: Lake, recent: Recent, periods: pa.Table, touched: str) -> DataFrame | None:
    """Return the rows that the table has of these periods; None if it has none. Mostly they are in memory."""
    wanted = {(one["step"], one["since"]) for one in periods.to_pylist()}
    known = recent.rows.select(["step", "since"]).to_pylist() if recent.rows.num_columns else []
    there = [(one["step"], one["since"]) for one in known]
    older = [(step, since) for step, since in wanted if step in recent.newest and since <= recent.newest[step]]
    if not older:
        return None
    if not set(older) <= set(there):
        return lake.read(ACTIVITY.name).where(touched)
    return lake.spark.createDataFrame(recent.rows.filter(pa.array([one in wanted for one in there])))


def _parents(lake: Lake, new: DataFrame) -> DataFrame | None:
    """Return the events that these entries name as parents; None if there are none.

    A parent is published before its children, so bronze has it.
    """
    ids = new.where("parent_id IS NOT NULL").select(F.col("parent_id").alias("event_id")).distinct()
    few = ids.limit(MOST_KEYS + 1).toArrow()
    if not len(few):
        return None
    published = lake.read(EVENT_LOG.name).where(F.col("action") == Action.PUBLISHED.value)
    condition = of_keys(few)
    if condition is not None:
        return parents_of(published.where(condition))
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


def _write_stale(lake: Lake, as_of: Column, after: float) -> None:
    """Write the stale workers, unless the table is known to have these rows. Mostly there are none."""
    known: pa.Table | None = lake.memory.get(STALE, _STALE_ROWS)
    held = open_attempts(lake)
    if held is not None and not len(held) and known is not None and not len(known):
        return
    found = stale_workers(lake.read(ATTEMPTS.name) if held is None else lake.spark.createDataFrame(held), as_of, after)
    rows = found.toArrow()
    if known is None or not rows.equals(known):
        lake.overwrite(lake.spark.createDataFrame(rows, found.schema).coalesce(1), STALE)
        lake.memory.keep(STALE, _STALE_ROWS, rows)
