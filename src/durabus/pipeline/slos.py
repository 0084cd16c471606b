"""SLOs: which share of the events ends well and in time, and how fast the rest uses up the error budget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError
from durabus.model.pattern import ANY, check_pattern
from durabus.pipeline.histograms import count_within
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import of_types
from durabus.pipeline.schema import ACTIVITY

SLOS = "gold.slos"
WINDOWS = {300: "minute", 3_600: "minute", 21_600: "minute", 86_400: "hour", 259_200: "hour"}
"""The windows of burn rates in seconds, each with the periods of ``gold.activity`` that it adds up."""
DAY = 86_400.0


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """An objective: at least this share of the events completes, and does so in time.

    - ``objective``: the share, such as 0.99.
    - ``within``: the seconds from publishing to the end that count as in time. None: any time.
    - ``type``: a pattern of event types. ``bus``: the name of a bus; None for all buses.
    - ``days``: how long the error budget lasts.

    A dead letter counts as bad at its end; a cancelled event does not count.
    """

    name: str
    objective: float
    within: float | None = None
    type: str = ANY
    bus: str | None = None
    days: int = 30

    def __post_init__(self) -> None:
        check_pattern(self.type)
        if not 0 < self.objective < 1:
            raise ConfigurationError(
                f"SLO {self.name!r}: objective={self.objective!r}: must be between 0 and 1, such as 0.99 for 99 %"
            )
        if self.days < 1:
            raise ConfigurationError(f"SLO {self.name!r}: days={self.days!r}: must be 1 or more")
        if self.within is not None and self.within <= 0:
            raise ConfigurationError(f"SLO {self.name!r}: within={self.within!r}: must be more than 0 seconds")

    def events(self, rows: DataFrame) -> DataFrame:
        """Return those of these rows of ``gold.activity`` that count, with the columns ``good`` and ``bad``."""
        bus = F.lit(True) if self.bus is None else F.col("bus") == self.bus
        counted = rows.where((F.col("facet") == "type") & of_types((self.type,)) & bus)
        good = F.col("completed") if self.within is None else count_within("end_to_end", self.within * 1000)
        return counted.select("*", good.alias("good"), (F.col("completed") + F.col("dead") - good).alias("bad"))


def burn_rates(rows: DataFrame, slo: Slo, now: Column) -> DataFrame:
    """Return how an SLO stands at the instant ``now``: a row for each window, from rows of ``gold.activity``."""
    windows = {seconds: step for seconds, step in WINDOWS.items() if seconds < slo.days * DAY}
    windows[int(slo.days * DAY)] = "day"
    events = slo.events(rows)
    sums = []
    for seconds, step in windows.items():
        since = F.timestamp_seconds(F.unix_seconds(now) - seconds)
        inside = (F.col("step") == step) & (F.col("since") >= since) & (F.col("since") <= now)
        sums.append(
            F.struct(
                F.lit(seconds).cast("bigint").alias("seconds"),
                *(F.coalesce(F.sum(F.when(inside, F.col(name))), F.lit(0)).alias(name) for name in ("good", "bad")),
            )
        )
    found = events.agg(F.array(*sums).alias("windows")).select(F.inline("windows"))
    budget, total = 1 - slo.objective, F.col("good") + F.col("bad")
    share = F.when(total > 0, F.col("bad") / total)
    own = F.col("seconds") == int(slo.days * DAY)
    return found.select(
        F.lit(slo.name).alias("slo"),
        F.lit(slo.bus).cast("string").alias("bus"),
        F.lit(slo.type).alias("type"),
        F.lit(slo.objective).alias("objective"),
        F.lit(None if slo.within is None else slo.within * 1000).cast("double").alias("within_ms"),
        *("seconds", "good", "bad"),
        share.alias("bad_share"),
        (share / budget).alias("burn_rate"),
        F.when(own, 1 - F.coalesce(share, F.lit(0.0)) / budget).alias("budget_left"),
        now.alias("as_of"),
    )


def write_slos(lake: Lake, slos: Sequence[Slo], as_of: float) -> None:
    """Write how the SLOs stand. It reads the periods of their windows only."""
    if not slos:
        return
    now = F.timestamp_micros(F.lit(int(as_of * 1e6)))
    longest = max(slo.days for slo in slos)
    recent = lake.read(ACTIVITY.name).where(F.col("since") >= now - F.expr(f"INTERVAL {longest + 1} DAYS"))
    lake.overwrite(reduce(DataFrame.unionAll, [burn_rates(recent, slo, now) for slo in slos]).coalesce(1), SLOS)
