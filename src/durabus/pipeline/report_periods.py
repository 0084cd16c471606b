"""The periods of the report's charts: from a second to a day, as suits the length of the log."""

from __future__ import annotations

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import Action
from durabus.pipeline.activity import as_rows, parents_of
from durabus.pipeline.facts import facts
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG

MAX_POINTS = 240
"""Maximum number of periods of a chart, unless they are days."""
UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
LENGTHS = {"second": (1, 2, 5, 10, 15, 30), "minute": (1, 2, 5, 10, 15, 30), "hour": (1, 2, 3, 6, 12), "day": (1,)}
"""How many units a period may have. Each length divides the next unit, so a period never crosses a midnight."""
SHORT_MINUTES = 30
"""A log of fewer minutes is shown in seconds, because a chart of so few minutes would say little."""
SHORT_ENTRIES = 200_000
"""A log of more entries is not shown in seconds, because the report would have to read all of them."""


class ReportPeriods(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of ``number`` units, and rows as in ``gold.activity`` from which they can be summed up."""

    unit: str
    number: int
    rows: DataFrame

    @property
    def name(self) -> str:
        """One period in words: "minute", "5 minutes"."""
        return self.unit if self.number == 1 else f"{self.number} {self.unit}s"

    @property
    def seconds(self) -> int:
        """The length of a period."""
        return self.number * UNITS[self.unit]

    def begin(self) -> Column:
        """Return the begin of the period of a row, in seconds since 1970."""
        since = F.unix_seconds("since")
        return since - F.pmod(since, F.lit(self.seconds))


def report_periods(lake: Lake, first: int, last: int, *, archived: int) -> ReportPeriods:
    """Return the periods for a log whose first and last minute begin at ``first`` and ``last``.

    ``archived`` is the number of entries in bronze. ``gold.activity`` has no seconds, so they are computed from bronze.
    """
    minutes = (last - first) // 60 + 1
    in_seconds = minutes < SHORT_MINUTES and 0 < archived <= SHORT_ENTRIES
    unit, number = period_for(minutes * 60, finest="second" if in_seconds else "minute")
    rows = _seconds(lake, number) if in_seconds else lake.read(ACTIVITY.name).where(F.col("step") == unit)
    return ReportPeriods(unit=unit, number=number, rows=rows)


def period_for(seconds: int, *, finest: str) -> tuple[str, int]:
    """Return unit and length of the shortest period of which so many seconds have at most ``MAX_POINTS``."""
    known = [(unit, number) for unit in UNITS if UNITS[unit] >= UNITS[finest] for number in LENGTHS[unit]]
    return next((one for one in known if seconds <= UNITS[one[0]] * one[1] * MAX_POINTS), known[-1])


def _seconds(lake: Lake, number: int) -> DataFrame:
    """Return rows as in ``gold.activity``, of the same entries, in periods of so many seconds."""
    seen = lake.value(ACTIVITY.name, "max(last_seq)")
    log = lake.read(EVENT_LOG.name).where(F.col("seq") <= seen)
    parents = parents_of(log.where(F.col("action") == Action.PUBLISHED.value))
    return as_rows(facts(log, parents, after=-1, seconds=number).withColumn("step", F.lit("second")))
