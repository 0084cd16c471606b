"""The status of the lake: its distance from the store, the last run of each step, and the size of the tables."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.archive import bronze_end
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import RUNS
from durabus.pipeline.verification import READER
from durabus.store.contract import EventStore


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a step. ``lag`` is the number of archived entries that a projection has not seen."""

    step: str
    version: int | None
    finished_at: datetime
    seconds: float
    rows: int
    lag: int | None
    error: str | None


class LakeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``behind``: log entries of the store that are not archived. ``unverified``: archived but not yet compared.

    ``behind`` is None while an open transaction hides entries from all readers, because it is unknown then.
    """

    archived: int
    behind: int | None
    unverified: int
    quarantined: int
    steps: list[StepStatus]


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The size and version of one table."""

    name: str
    rows: int
    files: int
    megabytes: float
    version: int


async def lake_status(lake: Lake, store: EventStore) -> LakeStatus:
    """Return the status of a lake and its store."""
    bronze = bronze_end(lake)
    verified = await store.read_position(READER)
    behind = await store.log_lag(bronze.position)
    unverified = await store.log_lag(verified) - behind
    return LakeStatus(
        archived=bronze.rows,
        behind=None if await store.log_hold() is not None else behind,
        unverified=max(unverified, 0),
        quarantined=int(lake.value("bronze.quarantine", "count(*)") or 0),
        steps=_steps(lake, bronze.rows),
    )


def _steps(lake: Lake, archived: int) -> list[StepStatus]:
    if not lake.exists(RUNS.name):
        return []
    newest = F.max(F.struct("finished_at", "seconds", "rows", "watermark", "error")).alias("run")
    rows = lake.read(RUNS.name).groupBy("step", "version").agg(newest).select("step", "version", "run.*").collect()
    return [
        StepStatus(
            step=row["step"],
            version=row["version"],
            finished_at=row["finished_at"].astimezone(UTC),
            seconds=row["seconds"],
            rows=row["rows"],
            lag=None if row["version"] is None or row["watermark"] is None else archived - 1 - row["watermark"],
            error=row["error"],
        )
        for row in sorted(rows, key=lambda row: row["finished_at"])
    ]


def table_status(lake: Lake) -> list[TableStatus]:
    """Return the size of every table."""
    found = []
    for name in lake.tables():
        detail = lake.detail(name)
        found.append(
            TableStatus(
                name=name,
                rows=int(lake.value(name, "count(*)") or 0),
                files=detail["numFiles"],
                megabytes=detail["sizeInBytes"] / 1e6,
                version=lake.version(name),
            )
        )
    return found
