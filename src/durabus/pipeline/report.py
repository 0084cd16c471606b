"""One self-contained HTML file about the lake: charts first, tables below."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from itertools import accumulate
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.charts import Bar, Series, bar_chart, line_chart, short
from durabus.pipeline.expectations import newest_results
from durabus.pipeline.gaps import read_gaps, trimmed_unread
from durabus.pipeline.histograms import merged, percentile_ms
from durabus.pipeline.lake import Lake, in_utc
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG, EVENTS, EXPECTATIONS

POINTS = 200
"""Maximum number of points of a line, for a history of any length."""
ROWS = 12


def report(lake: Lake, *, made_at: datetime) -> str:
    """Return the page. ``analyze`` must have written its tables."""
    rows = lake.read(ACTIVITY.name)
    days = rows.where("step = 'day'")
    minutes = rows.where("step = 'minute' AND facet = 'type'").withColumn("seconds", F.lit(60))
    of_types = days.where("facet = 'type'")
    page = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    parts = {
        "made_at": made_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "lake": escape(lake.path),
        "tiles": _tiles(lake),
        "depth": _depth(minutes),
        "throughput": _throughput(minutes),
        "latency": _latency(of_types),
        "failures": _failures(of_types),
        "dead": _dead(days.where("facet = 'error' AND dead > 0")),
        "handlers": _table(_handlers(days), "No handler has ended an event."),
        "stale": _table(
            lake.read("gold.stale_workers").orderBy(F.desc("claims")), "No worker holds a claim for too long."
        ),
        "abandoned": _table(_abandoned(days), "No claim was lost to a dead worker."),
        "expectations": _expectations(lake),
    }
    for name, part in parts.items():
        page = page.replace(f"<!-- {name} -->", part)
    return page


def _tiles(lake: Lake) -> str:
    row = (
        lake.read(EVENTS.name)
        .agg(
            F.count("*").alias("events"),
            F.count_if(F.col("status") == "COMPLETED").alias("completed"),
            F.count_if(F.col("status").isin("FAILED", "COMPLETED_WITH_ERRORS")).alias("dead"),
            F.count_if(F.col("status") == "CANCELLED").alias("cancelled"),
            F.count_if(F.col("ended_at").isNull()).alias("live"),
        )
        .first()
    )
    of_types = lake.read(ACTIVITY.name).where("step = 'day' AND facet = 'type'").agg(merged("end_to_end").alias("all"))
    (p95,) = of_types.select(percentile_ms("all", 0.95)).collect()[0]
    assert row is not None  # noqa: S101  (an aggregate without groups has one row)
    entries = lake.value(EVENT_LOG.name, "count(*)") or 0
    tiles = [
        ("events", f"{row['events']:,}", ""),
        ("completed", f"{row['completed']:,}", "good"),
        ("dead letters", f"{row['dead']:,}", "bad" if row["dead"] else ""),
        ("cancelled", f"{row['cancelled']:,}", ""),
        ("not ended yet", f"{row['live']:,}", ""),
        ("end to end, p95", "none yet" if p95 is None else duration(p95), ""),
        ("log entries archived", f"{entries:,}", ""),
    ]
    gaps = read_gaps(lake)
    if gaps:
        tiles.append(("trimmed before they were archived", trimmed_unread(gaps), "bad"))
    return "".join(f'<div class="tile {style}"><b>{value}</b><span>{name}</span></div>' for name, value, style in tiles)


class OverTime(msgspec.Struct, frozen=True):
    """Sums over all buses, in at most ``POINTS`` steps of ``width`` seconds without a gap."""

    width: int
    starts: list[int]
    sums: dict[str, list[float]]

    def series(self, name: str, style: str, values: list[float]) -> Series:
        """Return a named line of the chart."""
        return Series(name, style, [(float(at), value) for at, value in zip(self.starts, values, strict=True)])


def _over_time(rows: DataFrame, names: Sequence[str]) -> OverTime | None:
    since = F.unix_seconds("since")
    bounds = rows.agg(F.min(since), F.max(since), F.max("seconds")).first()
    if bounds is None or bounds[0] is None:
        return None
    first, last, step = bounds
    width = step * -(-(last - first + step) // (step * POINTS))
    start = (first + F.floor((since - first) / width) * width).alias("start")
    found = {row["start"]: row for row in rows.groupBy(start).agg(*(F.sum(n).alias(n) for n in names)).collect()}
    starts = list(range(first, last + 1, width))
    sums = {name: [float(found[at][name]) if at in found else 0.0 for at in starts] for name in names}
    return OverTime(width, starts, sums)


def _depth(rows: DataFrame) -> str:
    """Return a chart of the depth of all queues: the changes add up."""
    names = {"waiting_change": ("waiting", "blue"), "working_change": ("working", "orange")}
    found = _over_time(rows, list(names))
    series = [found.series(*names[n], list(accumulate(found.sums[n]))) for n in names] if found else []
    return line_chart(series, title="Queue depth over time")


def _throughput(rows: DataFrame) -> str:
    styles = {"published": "blue", "completed": "green", "dead": "red"}
    found = _over_time(rows, list(styles))
    if found is None:
        return line_chart([], title="Events over time")
    per_second = max(max(values) for values in found.sums.values()) >= found.width
    scale, unit = (1, "/s") if per_second else (60, "/min")
    series = [
        found.series(name, style, [value * scale / found.width for value in found.sums[name]])
        for name, style in styles.items()
    ]
    return line_chart(series, unit=unit, title="Events over time")


def _latency(rows: DataFrame) -> str:
    all_ = rows.groupBy("bus", "type").agg(merged("end_to_end").alias("all"))
    spans = [percentile_ms("all", p / 100).alias(f"end_to_end_p{p}_ms") for p in (50, 95, 99)]
    measured = all_.select("bus", "type", *spans).where("end_to_end_p99_ms IS NOT NULL")
    found = measured.orderBy(F.desc("end_to_end_p99_ms")).limit(ROWS).collect()
    bars = [
        Bar(
            _of_bus(row),
            [(f"shade{p}", row[f"end_to_end_p{p}_ms"]) for p in (50, 95, 99)],
            " · ".join(duration(row[f"end_to_end_p{p}_ms"]) for p in (50, 95, 99)),
        )
        for row in found
    ]
    legend = [(f"shade{p}", f"p{p}") for p in (50, 95, 99)]
    return bar_chart(bars, legend, title="End-to-end latency by type")


def _failures(rows: DataFrame) -> str:
    shares = {
        "retry_share": "try_divide(sum(retried), sum(claimed))",
        "dead_share": "try_divide(sum(dead), sum(completed + dead))",
    }
    made = rows.groupBy("bus", "type").agg(*(F.expr(share).alias(name) for name, share in shares.items()))
    found = made.orderBy(F.desc("retry_share"), F.desc("dead_share"), "type").limit(ROWS).collect()
    bars = [
        Bar(
            _of_bus(row),
            [("orange", row["retry_share"] or 0.0), ("red", row["dead_share"] or 0.0)],
            f"{(row['retry_share'] or 0.0):.1%} tried again, {(row['dead_share'] or 0.0):.1%} dead",
        )
        for row in found
    ]
    legend = [("orange", "claims after a failed attempt"), ("red", "ended as a dead letter")]
    return bar_chart(bars, legend, title="Failures by type")


def _dead(rows: DataFrame) -> str:
    made = rows.groupBy("type", F.col("name").alias("fingerprint")).agg(F.sum("dead").alias("events"))
    found = made.orderBy(F.desc("events"), "fingerprint").limit(ROWS).collect()
    bars = [
        Bar(row["fingerprint"], [("red", float(row["events"]))], f"{row['events']:,} × {row['type']}") for row in found
    ]
    return bar_chart(bars, title="Dead letters by error")


def _handlers(days: DataFrame) -> DataFrame:
    sums = [F.sum(name).alias(name) for name in ("completed", "failed")]
    made = days.where("facet = 'handler'").groupBy("bus", F.col("name").alias("handler"))
    found = made.agg(*sums, merged("running").alias("all")).select(
        *("bus", "handler", "completed", "failed"),
        *(percentile_ms("all", p / 100).alias(f"p{p}_ms") for p in (50, 99)),
    )
    return found.orderBy(F.desc("failed"))


def _abandoned(days: DataFrame) -> DataFrame:
    lost = days.where("facet = 'worker' AND abandoned > 0").groupBy(F.col("name").alias("worker"), "bus")
    return lost.agg(F.sum("abandoned").alias("attempts"), F.max("last_at").alias("last_at")).orderBy(F.desc("attempts"))


def _of_bus(row: Row) -> str:
    return str(row["type"]) if row["bus"] == "default" else f"{row['bus']} / {row['type']}"


def _expectations(lake: Lake) -> str:
    if not lake.exists(EXPECTATIONS.name):
        return '<p class="nothing">No expectation is declared.</p>'
    head = "".join(
        f"<th>{name}</th>" for name in ("expectation", "table", "action", "rows", "broken", "first broken row")
    )
    body = ""
    for one in newest_results(lake):
        cells = (one.name, one.table_name, one.action, one.rows, one.broken, one.samples[0] if one.samples else None)
        body += f"<tr>{''.join(_cell(cell) for cell in cells)}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _table(rows: DataFrame, nothing: str) -> str:
    found = rows.limit(ROWS).collect()
    if not found:
        return f'<p class="nothing">{escape(nothing)}</p>'
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows.columns)
    body = "".join(f"<tr>{''.join(_cell(row[name]) for name in rows.columns)}</tr>" for row in found)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return f"<td>{'' if value is None else value}</td>"
    if isinstance(value, int | float):
        return (
            f'<td class="number">{value:,.1f}</td>'
            if isinstance(value, float)
            else f'<td class="number">{value:,}</td>'
        )
    text = in_utc(value).strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else str(value)
    return f"<td>{escape(text)}</td>"


def duration(milliseconds: float) -> str:
    """Return a duration with a fitting unit, such as 3.5 s."""
    for limit, size, unit in ((1_000, 1, "ms"), (120_000, 1_000, "s"), (7_200_000, 60_000, "min")):
        if milliseconds < limit:
            return f"{short(milliseconds / size)} {unit}"
    return f"{short(milliseconds / 3_600_000)} h"
