"""``python -m benchmarks.pipeline [--rows N]``: the pipeline against the plain ways from a store to Delta, in one run.

What the plain ways leave out is said in ``benchmarks.pipeline_bulk``. Ratios count; seconds depend on the machine and
its neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from math import inf
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from pyspark.sql import DataFrame, SparkSession

from benchmarks.pipeline_bulk import DRIVERS, by_jdbc, by_python
from benchmarks.pipeline_load import fill
from benchmarks.report import PIPELINE
from benchmarks.results import Published, this_commit, this_moment
from durabus.cli.output import Bars, progress_bars
from durabus.jars import ensure_jars
from durabus.pipeline.analytics import rebuild_activity
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver, update_silver
from durabus.pipeline.jars import class_path
from durabus.pipeline.lake import Lake
from durabus.pipeline.projecting import rebuild_projection
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.run import Pipeline
from durabus.pipeline.schema import ACTIVITY
from durabus.pipeline.session import spark_session
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import verify
from durabus.testing.servers.postgresql import PostgreSQLServer

MORE = 10_000
FASTEST_PLAIN = 0.6
PART_OF_MORE = 0.2
MOST_GROWTH = 4.5
FEW, WARM_TURNS = 1_000, 6
WHOLE, WITH_FEW, WITHOUT_NEWS = "run, all", f"run, {FEW:,} more", "run, nothing new"
MOST_SECONDS = {WITH_FEW: 5.0, WITHOUT_NEWS: 2.0}
MOST_FIXED_GROWTH = 1.3
QUOTED_ROWS = 1_000_000
"""A run with fewer rows is a sanity check, too short for figures to quote."""
LABEL = 36
"""Width of the longest name of a step."""
Seconds = dict[str, float]
Way = Callable[[SparkSession, str], DataFrame]


class Measuring:
    """The seconds of each step by its name. Each step is shown while it runs."""

    def __init__(self, bars: Bars, lake: Lake, url: str, rows: int) -> None:
        self.lake = lake
        self.url = url
        self.seconds = Seconds()
        self._bars = bars
        self._rows = rows
        self._store = "PostgreSQL" if url.startswith("postgresql") else "SQLite"

    def time(self, name: str, work: Callable[[], object], rows: int | None = None) -> None:
        """Measure a step. A step that runs more than once counts with its best time."""
        taken = self._rows if rows is None else rows
        started = monotonic()
        with self._bars.step(f"{self._store}, {name}".ljust(LABEL), taken) as moved:
            work()
            moved(taken)
        self.seconds[name] = min(monotonic() - started, self.seconds.get(name, inf))


def peak_memory() -> dict[str, float]:
    """Return the memory of this process, of Java and of its Python workers, in MB by program."""
    parents, peaks = dict[int, int](), dict[int, tuple[str, float]]()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        process = int(status.parent.name)
        parents[process] = int(fields["PPid"])
        peaks[process] = fields["Name"].strip(), int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
    total = dict[str, float]()
    for process, (name, peak) in peaks.items():
        ancestor = process
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            total[name] = total.get(name, 0.0) + peak
    return total


def archived(run: Measuring, ways: Mapping[str, Way]) -> None:
    """Run each plain way, then the archive, in two turns: the first turn finds cold caches. All copy the same rows."""
    spark, counts = run.lake.spark, set[int]()
    place = f"{run.lake.path}-plain"
    for lake in (Lake(spark, f"{run.lake.path}-first"), run.lake):
        for name, way in ways.items():
            run.time(name, lambda way=way: way(spark, run.url).write.format("delta").mode("overwrite").save(place))  # type: ignore[misc]
            counts.add(spark.read.format("delta").load(place).count())
        run.time("archive", lambda lake=lake: archive(lake, run.url))  # type: ignore[misc]
        counts.add(lake.read("bronze.event_log").count())
    assert len(counts) == 1, counts
    run.time("verify", lambda: verified(run))


def archive(lake: Lake, url: str) -> None:
    with StoreSession(url) as session:
        Archive(lake, session).run()


def verified(run: Measuring) -> None:
    with StoreSession(run.url) as session:
        verify(run.lake, session)


def derived(run: Measuring) -> None:
    """Derive every table that is made of bronze."""
    for name in TRANSFORMS:
        run.time(name, lambda name=name: rebuild_silver(run.lake, name))  # type: ignore[misc]
    for projection in (hourly_counters(), latest_state("customer"), journeys("customer")):
        run.time(projection.name, lambda one=projection: rebuild_projection(run.lake, one))  # type: ignore[misc]
    run.time(ACTIVITY.name, lambda: rebuild_activity(run.lake))


def whole_runs(run: Measuring) -> None:
    """Run the whole pipeline into an empty lake, then with few new entries and with nothing new, in a warm session."""
    lake = Lake(run.lake.spark, f"{run.lake.path}-run")
    pipeline = Pipeline(lake, run.url, (hourly_counters(), latest_state("customer"), journeys("customer")))
    run.time(WHOLE, pipeline.run)
    for turn in range(WARM_TURNS):  # the best time counts, because the first turns find code that is not compiled yet
        filling(run.url, FEW, seed=10 + turn)()
        run.time(WITH_FEW, pipeline.run, FEW)
        run.time(WITHOUT_NEWS, pipeline.run, 0)


def with_more(run: Measuring) -> None:
    """Add 10,000 new entries and run the pipeline again."""
    filling(run.url, MORE, seed=3)()
    run.time(f"archive, {MORE:,} more", lambda: archive(run.lake, run.url), MORE)
    run.time(f"verify, {MORE:,} more", lambda: verified(run), MORE)
    if run.lake.exists("silver.events"):
        run.time(f"silver.events, {MORE:,} more", lambda: update_silver(run.lake, "silver.events"), MORE)


def load(url: str, rows: int, seed: int) -> None:
    asyncio.run(fill(url, rows, seed))


def filling(url: str, rows: int, seed: int) -> Callable[[], None]:
    """Begin to load in a process of its own, whose memory does not count. Returns a function that waits for its end."""
    process = get_context("spawn").Process(target=load, args=(url, rows, seed))
    process.start()

    def wait() -> None:
        process.join()
        assert process.exitcode == 0, f"loading ended with {process.exitcode}"

    return wait


def measure(spark: SparkSession, place: Path, rows: int, postgresql: str, bars: Bars) -> list[Seconds]:
    """Measure a quarter of the rows on SQLite, all rows on SQLite, and all rows on PostgreSQL."""
    sqlite, quarter = f"sqlite:///{place}/log.db?synchronous=normal", rows // 4
    ways = {"plain, sqlite3": by_python, "plain, JDBC": by_jdbc}
    with bars.step("load both stores".ljust(LABEL), rows + quarter) as moved:
        other = filling(postgresql, rows, seed=1)
        filling(sqlite, quarter, seed=1)()
        moved(quarter)
        other()
        moved(rows + quarter)
    small = Measuring(bars, Lake(spark, place / "quarter"), sqlite, quarter)
    archived(small, ways)
    for _ in range(2):  # the first time finds nothing warm, and cold figures of few rows would flatter the growth
        derived(small)
    with_more(small)
    whole_runs(small)
    rest = rows - quarter - MORE - WARM_TURNS * FEW
    with bars.step("load SQLite".ljust(LABEL), rest) as moved:
        filling(sqlite, rest, seed=2)()
        moved(rest)
    large = Measuring(bars, Lake(spark, place / "all"), sqlite, rows)
    archived(large, ways)
    derived(large)
    with_more(large)
    whole_runs(large)
    beside = Measuring(bars, Lake(spark, place / "postgresql"), postgresql, rows)
    archived(beside, {"plain, JDBC": by_jdbc})
    with_more(beside)
    return [small.seconds, large.seconds, beside.seconds]


def report(rows: int, small: Seconds, large: Seconds, postgresql: Seconds) -> str:
    """Print the table, then the ratios with their targets."""
    head = ["", f"SQLite {rows // 4:,}", f"SQLite {rows:,}", "growth", f"PostgreSQL {rows:,}"]
    lines = [f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|"]
    for name, seconds in large.items():
        beside = f"{postgresql[name]:.1f} s" if name in postgresql else ""
        growth = f"{seconds / small[name]:.1f} ×"
        lines.append(f"| {name} | {small[name]:.1f} s | {seconds:.1f} s | {growth} | {beside} |")
    lines.append("")
    for store, found in (("SQLite", large), ("PostgreSQL", postgresql)):
        best = min(seconds for name, seconds in found.items() if name.startswith("plain"))
        speed, part = best / found["archive"], found[f"archive, {MORE:,} more"] / found["archive"]
        lines.append(
            f"- {store}: {rows / found['archive']:,.0f} rows/s, {speed:.0%} of the fastest plain way "
            f"(target 60 %: {verdict(speed >= FASTEST_PLAIN)}); {MORE:,} more take {part:.0%} of the full run "
            f"(target below 20 %: {verdict(part < PART_OF_MORE)})"
        )
    for name, most in MOST_SECONDS.items():
        factor = large[name] / small[name]
        lines.append(
            f"- {name}, warm session: {large[name]:.1f} s (target at most {most:g} s: {verdict(large[name] <= most)}); "
            f"four times the rows take {factor:.2f} × the time (target at most 1.3 ×: "
            f"{verdict(factor <= MOST_FIXED_GROWTH)})"
        )
    made = [name for name in large if not name.startswith(("plain", "archive", "verify", "run")) and "more" not in name]
    times = sum(large[name] for name in made) / sum(small[name] for name in made)
    lines.append(
        f"- projections and analytics: four times the rows take {times:.1f} × the time "
        f"(target at most 4.5 ×: {verdict(times <= MOST_GROWTH)})"
    )
    return "\n".join(lines)


def verdict(met: object) -> str:
    return "ok" if met else "MISS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="log entries of the large store")
    parser.add_argument("--memory", default="1g", help="memory of the driver")
    options = parser.parse_args()
    started, commit, load_before = monotonic(), this_commit(), os.getloadavg()[0]
    place = Path(tempfile.mkdtemp(prefix="durabus-bench-"))
    jars = os.pathsep.join([class_path(), *map(str, ensure_jars(DRIVERS))])
    conf = {"spark.driver.extraClassPath": jars}
    spark = spark_session(memory=options.memory, conf=conf, messages=place / "spark.log")
    try:
        with PostgreSQLServer() as server, progress_bars() as bars:
            small, large, postgresql = measure(spark, place, options.rows, server.url, bars)
        memory = peak_memory()
    finally:
        spark.stop()
        shutil.rmtree(place, ignore_errors=True)
    told = ", ".join(f"{name} {peak:,.0f} MB" for name, peak in sorted(memory.items()))
    text = report(options.rows, small, large, postgresql)
    text += f"\n- peak memory at spark.driver.memory={options.memory}: {told}; {monotonic() - started:.0f} s in all"
    made = Published(markdown=text, finished=this_moment(), commit=commit, load=load_before)
    print(made.text())
    if options.rows >= QUOTED_ROWS:
        made.write(PIPELINE)
        print(f"table for docs/proof/benchmarks.md in {PIPELINE}")


if __name__ == "__main__":
    main()
