"""Reads what the report shows: ``gold.activity`` in periods that suit the length of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import Action
from durabus.pipeline.activity import as_rows, parents_of
from durabus.pipeline.facts import facts
from durabus.pipeline.histograms import PARTS
from durabus.pipeline.lake import Lake, in_utc
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG, HISTOGRAMS

MAX_POINTS = 240
"""Maximum number of periods of a chart, unless they are days."""
UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
LENGTHS = {"second": (1, 2, 5, 10, 15, 30), "minute": (1, 2, 5, 10, 15, 30), "hour": (1, 2, 3, 6, 12), "day": (1,)}
"""How many units a period may have. Each length divides the next unit, so a period never crosses a midnight."""
SHORT_MINUTES = 30
"""A log of fewer minutes is shown in seconds, because a chart of so few minutes would say little."""
SHORT_ENTRIES = 200_000
"""A log of more entries is not shown in seconds, because the report would have to read all of them."""
SHOWN = {"type": 24, "handler": 24, "error": 24, "worker": 12, "parent": 24}
"""Maximum number of rows of each facet."""
OTHERS = "(other types)"
"""The type that stands for all types beyond those shown."""
COUNTERS = (
    *("published", "claimed", "retried", "completed", "dead", "cancelled", "failed", "abandoned"),
    *("waiting_change", "working_change", "handler_us", "busy_us"),
)
SHARES = (0.5, 0.95, 0.99)
_KEY = ("facet", "bus", "type", "name")

Histogram = Iterable[tuple[int, int]]
"""The smallest duration of each class in microseconds, and the number of durations. A class may occur twice."""


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


class ReportSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one row of a facet over time. ``at`` are the numbers of the periods that have a value."""

    facet: str
    bus: str | None
    type: str | None
    name: str | None
    at: list[int]
    counters: dict[str, list[int]]
    spans: dict[str, list[float | None]]
    """p50, p95 and p99 over the whole history, in milliseconds."""
    first_at: str | None = None
    last_at: str | None = None
    example: str | None = None
    example_event_id: str | None = None


class PercentileLines(msgspec.Struct, frozen=True, kw_only=True):
    """PercentileLines over time of one bus, one type, or both; None stands for all."""

    bus: str | None
    type: str | None
    at: list[int]
    spans: dict[str, list[list[float | None]]]
    """For each span, one list per share of ``SHARES``, in milliseconds."""
    whole: dict[str, list[float | None]]
    """For each span, the percentiles over the whole history."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything over time, in ``count`` periods of ``seconds`` that begin at ``first`` (seconds since 1970)."""

    period: str
    seconds: int
    first: int
    count: int
    series: list[ReportSeries]
    percentiles: list[PercentileLines]
    left_out: dict[str, int]
    """The number of rows of each facet that the page does not show."""


def read_activity(lake: Lake, *, archived: int) -> Activity | None:
    """Return the activity for the page; None if the lake has no such table, or nothing in it.

    ``archived`` is the number of entries in bronze.
    """
    if not lake.exists(ACTIVITY.name):
        return None
    rows = lake.read(ACTIVITY.name)
    since = F.unix_seconds("since")
    bounds = rows.where("step = 'minute'").agg(F.min(since), F.max(since)).first()
    if bounds is None or bounds[0] is None:
        return None
    periods = report_periods(lake, *bounds, archived=archived)
    seconds = periods.seconds
    # The days have the same sums as the minutes, in fewer rows.
    totals = _totals(rows.where("step = 'day'"))
    shown = [row for row in totals if row["rank"] <= SHOWN[row["facet"]]]
    found = _over_time(periods, shown, lake).collect()
    first, last = int(found[0]["at"]), int(found[-1]["at"])
    number = {id(row): (int(row["at"]) - first) // seconds for row in found}
    return Activity(
        period=periods.name,
        seconds=seconds,
        first=first,
        count=(last - first) // seconds + 1,
        series=_series(found, number, shown),
        percentiles=_percentiles([row for row in found if row["facet"] == "type"], number),
        left_out={
            facet: left
            for facet in SHOWN
            if (left := max((row["of"] for row in totals if row["facet"] == facet), default=0) - SHOWN[facet]) > 0
        },
    )


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
    """Return unit and length of the shortest period that divides ``seconds`` into at most ``MAX_POINTS`` periods."""
    known = [(unit, number) for unit in UNITS if UNITS[unit] >= UNITS[finest] for number in LENGTHS[unit]]
    return next((one for one in known if seconds <= UNITS[one[0]] * one[1] * MAX_POINTS), known[-1])


def _seconds(lake: Lake, number: int) -> DataFrame:
    """Compute rows as in ``gold.activity`` from the same entries of bronze, in periods of ``number`` seconds."""
    seen = lake.value(ACTIVITY.name, "max(last_seq)")
    log = lake.read(EVENT_LOG.name).where(F.col("seq") <= seen)
    parents = parents_of(log.where(F.col("action") == Action.PUBLISHED.value))
    return as_rows(facts(log, parents, after=-1, seconds=number).withColumn("step", F.lit("second")))


def percentiles(histogram: Histogram) -> list[float | None]:
    """Return the percentiles of a histogram for each of ``SHARES``, in milliseconds: the middle of a class."""
    counts: dict[int, int] = defaultdict(int)
    for smallest, count in histogram:
        counts[smallest] += count
    total, found = sum(counts.values()), list[float | None]()
    for share in SHARES:
        below = 0
        for smallest in sorted(counts):
            below += counts[smallest]
            if below >= share * total:
                found.append(_rounded(_middle(smallest) / 1000))
                break
        else:
            found.append(None)
    return found


def _middle(smallest: int) -> float:
    width = 0 if smallest < PARTS else 1 << (smallest.bit_length() - PARTS.bit_length())
    return smallest + width / 2


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _totals(rows: DataFrame) -> list[Row]:
    """Return each row of the facets over the whole history, the busiest first, with its rank and their number."""
    whole = rows.groupBy(*_KEY).agg(
        F.sum("entries").alias("entries"),
        *(_merged(name) for name in HISTOGRAMS),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.max_by("example", "last_seq").alias("example"),
        F.max_by("example_event_id", "last_seq").alias("example_event_id"),
    )
    facet = Window.partitionBy("facet")
    ranked = whole.withColumns(
        {
            "rank": F.row_number().over(facet.orderBy(F.desc("entries"), "bus", "type", "name")),
            "of": F.count("*").over(facet),
        }
    )
    most = F.element_at(F.create_map(*(F.lit(part) for pair in SHOWN.items() for part in pair)), F.col("facet"))
    return ranked.where(F.col("rank") <= most).orderBy("facet", "rank").collect()


def _over_time(periods: ReportPeriods, shown: Sequence[Row], lake: Lake) -> DataFrame:
    """Return the periods of the rows that are shown. Types that are not become one type of their bus."""
    keys = [tuple(row[name] for name in _KEY) for row in shown]
    known = lake.spark.createDataFrame(keys, ", ".join(f"known_{name} STRING" for name in _KEY))
    same = [F.col(name).eqNullSafe(F.col(f"known_{name}")) for name in _KEY]
    joined = periods.rows.join(F.broadcast(known), same, "left")
    kept = F.col("known_facet").isNotNull()
    named = joined.where(kept | (F.col("facet") == "type")).withColumn(
        "type", F.when(kept, F.col("type")).otherwise(OTHERS)
    )
    return (
        named.groupBy(*_KEY, periods.begin().alias("at"))
        .agg(*(F.sum(name).alias(name) for name in COUNTERS), *(_merged(name) for name in HISTOGRAMS))
        .orderBy("at")
    )


def _merged(histogram: str) -> Column:
    return F.flatten(F.collect_list(histogram)).alias(histogram)


def _series(found: Sequence[Row], number: dict[int, int], shown: Sequence[Row]) -> list[ReportSeries]:
    over_time: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in found:
        over_time[tuple(row[name] for name in _KEY)].append(row)
    whole = {tuple(row[name] for name in _KEY): row for row in shown}
    made = []
    for key, rows in over_time.items():
        total = whole.get(key)
        spans = {
            name: [pair for row in (rows if total is None else [total]) for pair in row[name] or ()]
            for name in HISTOGRAMS
        }
        facet, bus, type_, name = key
        made.append(
            ReportSeries(
                facet=facet,
                bus=bus,
                type=type_,
                name=name,
                at=[number[id(row)] for row in rows],
                counters={
                    counter: values for counter in COUNTERS if any(values := [row[counter] or 0 for row in rows])
                },
                spans={span: percentiles(pairs) for span, pairs in spans.items() if pairs},
                first_at=None if total is None else _instant(total["first_at"]),
                last_at=None if total is None else _instant(total["last_at"]),
                example=None if total is None else total["example"],
                example_event_id=None if total is None else total["example_event_id"],
            )
        )
    return made


def _percentiles(found: Sequence[Row], number: dict[int, int]) -> list[PercentileLines]:
    """Return percentiles over time of everything, of each bus, of each type, and of each type of a bus."""
    groups: dict[tuple[str | None, str | None], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        for bus in (None, row["bus"]):
            for type_ in (None, row["type"]):
                groups[bus, type_][number[id(row)]].append(row)
    made = []
    for (bus, type_), periods in groups.items():
        at = sorted(periods)
        pairs = {
            span: [[pair for row in periods[one] for pair in row[span] or ()] for one in at] for span in HISTOGRAMS
        }
        values = {span: [percentiles(one) for one in pairs[span]] for span in HISTOGRAMS}
        made.append(
            PercentileLines(
                bus=bus,
                type=type_,
                at=at,
                spans={
                    span: [[one[share] for one in values[span]] for share in range(len(SHARES))] for span in HISTOGRAMS
                },
                whole={span: percentiles(chain.from_iterable(pairs[span])) for span in HISTOGRAMS},
            )
        )
    return made


def _instant(value: datetime | None) -> str | None:
    return None if value is None else f"{in_utc(value):%Y-%m-%d %H:%M:%S}"
