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
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from pyspark.sql import DataFrame, SparkSession

from benchmarks.pipeline_bulk import DRIVERS, by_jdbc, by_python
from benchmarks.pipeline_load import fill
from durabus.pipeline.analytics import analyze
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver, update_silver
from durabus.pipeline.jars import class_path, ensure_jars
from durabus.pipeline.lake import Lake
from durabus.pipeline.project import rebuild_projection
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.session import spark_session
from durabus.servers.postgresql import PostgreSQLServer

MORE = 10_000
Seconds = dict[str, float]
Way = Callable[[SparkSession, str], DataFrame]


def timed(work: Callable[[], object]) -> float:
    started = monotonic()
    work()
    return monotonic() - started


def peak_memory() -> dict[str, float]:
    """Of this process and those it started, Java and its Python workers, in MB by program."""
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


def archived(lake: Lake, url: str, ways: Mapping[str, Way]) -> Seconds:
    """Each plain way, then the archive; all must have brought the same rows. The first way warms everything up."""
    spark, seconds, counts = lake.spark, Seconds(), set[int]()
    place = f"{lake.path}-plain"
    first = next(iter(ways.values()))
    first(spark, url).limit(1).write.format("delta").mode("overwrite").save(place)
    for name, way in ways.items():
        seconds[name] = timed(lambda way=way: way(spark, url).write.format("delta").mode("overwrite").save(place))  # type: ignore[misc]
        counts.add(spark.read.format("delta").load(place).count())
    seconds["archive"] = timed(lambda: Archive(lake, url).run())
    counts.add(lake.read("bronze.event_log").count())
    assert len(counts) == 1, counts
    return seconds


def derived(lake: Lake) -> Seconds:
    """Everything that is made of bronze."""
    seconds = Seconds()
    for name in TRANSFORMS:
        seconds[name] = timed(lambda name=name: rebuild_silver(lake, name))  # type: ignore[misc]
    for projection in (hourly_counters(), latest_state("customer"), journeys("customer")):
        seconds[projection.name] = timed(lambda one=projection: rebuild_projection(lake, one))  # type: ignore[misc]
    seconds["analyze"] = timed(lambda: analyze(lake, as_of=2e9))
    return seconds


def with_more(lake: Lake, url: str) -> Seconds:
    """10,000 new entries on top."""
    loaded(url, MORE, seed=3)
    seconds = {f"archive, {MORE:,} more": timed(lambda: Archive(lake, url).run())}
    if lake.exists("silver.events"):
        seconds[f"silver.events, {MORE:,} more"] = timed(lambda: update_silver(lake, "silver.events"))
    return seconds


def load(url: str, rows: int, seed: int) -> None:
    asyncio.run(fill(url, rows, seed))


def loaded(url: str, rows: int, seed: int) -> None:
    """In a process of its own: its memory is not the pipeline's."""
    filling(url, rows, seed)()


def filling(url: str, rows: int, seed: int) -> Callable[[], None]:
    """Begin to load; the answer waits for the end."""
    process = get_context("spawn").Process(target=load, args=(url, rows, seed))
    process.start()

    def wait() -> None:
        process.join()
        assert process.exitcode == 0, f"loading ended with {process.exitcode}"

    return wait


def measure(spark: SparkSession, place: Path, rows: int, postgresql: str) -> tuple[Seconds, Seconds, Seconds]:
    """At a quarter of the rows on SQLite, at all on SQLite, at all on PostgreSQL."""
    sqlite = f"sqlite:///{place}/log.db?synchronous=normal"
    ways = {"plain, sqlite3": by_python, "plain, JDBC": by_jdbc}
    other = filling(postgresql, rows, seed=1)
    loaded(sqlite, rows // 4, seed=1)
    other()
    lake = Lake(spark, place / "quarter")
    small = archived(lake, sqlite, ways) | derived(lake) | with_more(lake, sqlite)
    loaded(sqlite, rows - rows // 4 - MORE, seed=2)
    lake = Lake(spark, place / "all")
    large = archived(lake, sqlite, ways) | derived(lake) | with_more(lake, sqlite)
    lake = Lake(spark, place / "postgresql")
    return small, large, archived(lake, postgresql, {"plain, JDBC": by_jdbc}) | with_more(lake, postgresql)


def print_report(rows: int, small: Seconds, large: Seconds, postgresql: Seconds) -> None:
    print(f"{'':<30}{f'SQLite {rows // 4:,}':>18}{f'SQLite {rows:,}':>18}{'growth':>9}{f'PostgreSQL {rows:,}':>24}")
    for name, seconds in large.items():
        beside = f"{postgresql[name]:.1f} s" if name in postgresql else ""
        growth = f"{seconds / small[name]:.1f}x"
        print(f"{name:<30}{f'{small[name]:.1f} s':>18}{f'{seconds:.1f} s':>18}{growth:>9}{beside:>24}")
    for store, found in (("SQLite", large), ("PostgreSQL", postgresql)):
        best = min(seconds for name, seconds in found.items() if name.startswith("plain"))
        part = found[f"archive, {MORE:,} more"] / found["archive"]
        print(
            f"{store}: {rows / found['archive']:,.0f} rows/s, {best / found['archive']:.0%} of the fastest plain way "
            f"(target 60 %); {MORE:,} more take {part:.0%} of the full run (target below 20 %)"
        )
    made = [name for name in large if not name.startswith(("plain", "archive")) and "more" not in name]
    times = sum(large[name] for name in made) / sum(small[name] for name in made)
    print(f"projections and analytics: four times the rows take {times:.1f}x the time (target at most 4.5x)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="log entries of the large store")
    parser.add_argument("--memory", default="1g", help="memory of the driver")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="durabus-bench-"))
    jars = os.pathsep.join([class_path(), *map(str, ensure_jars(DRIVERS))])
    conf = {"spark.driver.extraClassPath": jars}
    spark = spark_session(memory=options.memory, conf=conf, messages=place / "spark.log")
    try:
        with PostgreSQLServer() as server:
            small, large, postgresql = measure(spark, place, options.rows, server.url)
        memory = peak_memory()
    finally:
        spark.stop()
        shutil.rmtree(place, ignore_errors=True)
    print_report(options.rows, small, large, postgresql)
    told = ", ".join(f"{name} {peak:,.0f} MB" for name, peak in sorted(memory.items()))
    print(f"peak memory at spark.driver.memory={options.memory}: {told}")


if __name__ == "__main__":
    main()
