"""``python -m benchmarks.pipeline [--rows N]``: the pipeline against the plain way from SQLite to Delta, in one run.

The plain way is a Python data source of thirty lines over ``sqlite3``: same rows, same columns, same table format, but
no store, no sequence, no check of what does not parse. Ratios count; seconds depend on the machine and its neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from durabus import new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete, Fail
from durabus.pipeline.analytics import analyze
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver, update_silver
from durabus.pipeline.lake import Lake
from durabus.pipeline.log_schema import SPARK, record_batch
from durabus.pipeline.project import rebuild_projection
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.session import spark_session

KINDS = ("order.placed", "order.paid", "order.shipped", "user.created", "mail.sent")
ROWS_PER_EVENT = 3
COLUMNS = (
    "CAST(position AS TEXT), action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, "
    "worker_id, error, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, "
    "results"
)


class PlainReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        database = sqlite3.connect(self._path)
        (last,) = database.execute("SELECT max(position) FROM event_log").fetchone()
        database.close()
        return [InputPartition((start, min(start + 250_000, last))) for start in range(0, last, 250_000)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        database = sqlite3.connect(self._path)
        query = f"SELECT {COLUMNS} FROM event_log WHERE position > ? AND position <= ? ORDER BY position"  # noqa: S608
        rows = database.execute(query, partition.value)
        while page := rows.fetchmany(10_000):
            yield record_batch(page, range(len(page)))
        database.close()


class PlainSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "plain_sqlite"

    def schema(self) -> str:
        return SPARK

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (Spark's name)
        return PlainReader(self.options["path"])


async def fill(path: Path, events: int, seed: int) -> None:
    """Publish, claim and settle through the store; about three log entries an event."""
    rnd = random.Random(seed)
    store = await open_store(f"sqlite:///{path}?synchronous=normal")
    for start in range(0, events, 2_000):
        new = [
            new_event(
                rnd.choice(KINDS),
                {"order": rnd.randrange(events), "customer": f"c{rnd.randrange(5000)}", "note": "x" * 160},
                tags=["eu"] if rnd.random() < 0.3 else [],
            )
            for _ in range(min(2_000, events - start))
        ]
        await store.add_events(new)
        request = ClaimRequest(bus="default", worker_id=f"host:{start % 7}", token=new_token(), limit=2_000)
        claims = await store.claim_next_events(request)
        await store.settle_events(
            [
                Fail(claim.ref, f"Timeout after {rnd.randrange(60)} s", None, execution_time_ms=3.0)
                if rnd.random() < 0.02
                else Complete(claim.ref, execution_time_ms=rnd.random() * 50)
                for claim in claims
            ]
        )
    await store.close()


def timed(work: Callable[[], object]) -> float:
    started = monotonic()
    work()
    return monotonic() - started


def peak_memory() -> float:
    """Of this process and its children, in MB."""
    total = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if int(fields.get("PPid", "0")) == os.getpid() or status.parent.name == str(os.getpid()):
            total += int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
    return total


def measure(spark: SparkSession, place: Path, rows: int, label: str) -> dict[str, float]:
    """Everything at one size; in seconds."""
    path, lake = place / f"{label}.db", Lake(spark, place / label)
    url = f"sqlite:///{path}"
    asyncio.run(fill(path, rows // ROWS_PER_EVENT, seed=1))
    seconds: dict[str, float] = {}

    def plain() -> None:
        frame = spark.read.format("plain_sqlite").option("path", str(path)).load()
        frame.write.format("delta").mode("overwrite").save(str(place / f"{label}-plain"))

    seconds["plain way, cold"] = timed(plain)
    seconds["plain way"] = timed(plain)
    seconds["archive"] = timed(lambda: Archive(lake, url).run())
    archived = lake.value("bronze.event_log", "count(*)")
    kept = spark.read.format("delta").load(str(place / f"{label}-plain")).count()
    assert archived == kept, (archived, kept)
    for name in TRANSFORMS:
        seconds[name] = timed(lambda name=name: rebuild_silver(lake, name))  # type: ignore[misc]
    for projection in (hourly_counters(), latest_state("customer"), journeys("customer")):
        seconds[projection.name] = timed(lambda one=projection: rebuild_projection(lake, one))  # type: ignore[misc]
    seconds["analyze"] = timed(lambda: analyze(lake, as_of=2e9))
    asyncio.run(fill(path, 10_000 // ROWS_PER_EVENT, seed=2))
    seconds["archive, 10,000 more"] = timed(lambda: Archive(lake, url).run())
    seconds["silver.events, 10,000 more"] = timed(lambda: update_silver(lake, "silver.events"))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="log entries of the large store")
    parser.add_argument("--memory", default="1g", help="memory of the driver")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="durabus-bench-"))
    spark = spark_session(memory=options.memory, messages=place / "spark.log")
    spark.dataSource.register(PlainSource)
    try:
        small = measure(spark, place, options.rows // 4, "small")
        large = measure(spark, place, options.rows, "large")
        memory = peak_memory()
    finally:
        spark.stop()
        shutil.rmtree(place, ignore_errors=True)
    print(f"{'':<28}{options.rows // 4:>12,} rows{options.rows:>12,} rows{'growth':>9}")
    for name, seconds in large.items():
        print(f"{name:<28}{small[name]:>15.1f} s{seconds:>15.1f} s{seconds / small[name]:>8.1f}x")
    rate = large["plain way"] / large["archive"]
    part = large["archive, 10,000 more"] / large["archive"]
    print(f"archive: {options.rows / large['archive']:,.0f} rows/s, {rate:.0%} of the plain way (target 60 %)")
    print(f"10,000 more: {part:.0%} of the full run (target below 20 %)")
    print(f"peak memory of driver, Java and workers: {memory:,.0f} MB at spark.driver.memory={options.memory}")


if __name__ == "__main__":
    main()
