"""Bring derived tables up to date: only the rows whose input changed are made again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.lake import Lake
from durabus.pipeline.silver import OF_ATTEMPTS, attempts, events
from durabus.pipeline.tables import ATTEMPTS, EVENT_LOG, EVENTS, Table

TRANSFORMS: dict[str, tuple[Table, Callable[[DataFrame], DataFrame], list[str] | None]] = {
    EVENTS.name: (EVENTS, events, None),
    ATTEMPTS.name: (ATTEMPTS, attempts, OF_ATTEMPTS),
}
"""By name: the table, what makes it, and the actions it is made of, if not of all."""


def update_silver(lake: Lake, name: str) -> int:
    """Make the rows again whose events have new entries. Answers how many entries were new.

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
    """Make the whole table again from bronze. Answers how many entries it was made of."""
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
