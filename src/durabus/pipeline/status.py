"""The status of the lake: its distance from the store, the last run of each step, and the size of the tables."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import InvalidEventError, PipelineError
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.expectations import ExpectationResult, newest_results
from durabus.pipeline.gaps import Gap, lake_id, read_gaps
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import EVENT_LOG, RUNS
from durabus.store.contract import EventStore
from durabus.store.log import ARCHIVE


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a step. ``lag`` is the number of archived entries that its table lacks; None if it is unknown."""

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

    lake_id: str
    archived: int
    behind: int | None
    unverified: int
    quarantined: int
    gaps: list[Gap]
    followers: dict[str, int]
    """The number of log entries that each lake of the store, by its id, has not verified: they cannot be trimmed."""
    steps: list[StepStatus]
    expectations: list[ExpectationResult]
    """The newest result of each expectation."""


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The size and version of one table."""

    name: str
    rows: int
    files: int
    megabytes: float
    version: int


async def lake_status(lake: Lake, store: EventStore) -> LakeStatus:
    """Return the status of a lake and its store."""
    bronze, own = bronze_end(lake), lake_id(lake)
    try:
        behind = await store.log_lag(bronze.position)
    except InvalidEventError as error:  # the store has never given out this position
        raise PipelineError(
            f"the lake {lake.path} is ahead of this store: the store was restored from an older copy, or it is another "
            "store; keep this lake as it is and archive the store into a new one (--lake)"
        ) from error
    positions = (await store.read_archives()).positions
    followers = {name.removeprefix(ARCHIVE): await store.log_lag(position) for name, position in positions.items()}
    unverified = followers.get(own, 0) - behind
    return LakeStatus(
        lake_id=own,
        gaps=read_gaps(lake),
        followers=followers,
        archived=bronze.rows,
        behind=None if await store.log_hold() is not None else behind,
        unverified=max(unverified, 0),
        quarantined=int(lake.value("bronze.quarantine", "count(*)") or 0),
        steps=last_steps(lake, bronze.rows),
        expectations=newest_results(lake),
    )


def last_steps(lake: Lake, archived: int) -> list[StepStatus]:
    """Return the last run of each step. ``archived`` is the number of archived entries."""
    if not lake.exists(RUNS.name):
        return []
    runs = lake.read(RUNS.name)
    newest = F.max(F.struct("finished_at", "seconds", "rows", "watermark", "error", "run_id")).alias("run")
    last = runs.groupBy("step", "version").agg(newest).select("step", "version", "run.*")
    # A step that keeps no position of its own includes what the same run has archived.
    ends = runs.where(F.col("step") == EVENT_LOG.name).select("run_id", F.col("watermark").alias("run_end"))
    rows = last.join(ends, "run_id", "left").collect()
    return [
        StepStatus(
            step=row["step"],
            version=row["version"],
            finished_at=row["finished_at"].astimezone(UTC),
            seconds=row["seconds"],
            rows=row["rows"],
            lag=_lag(row, archived),
            error=row["error"],
        )
        for row in sorted(rows, key=lambda row: row["finished_at"])
    ]


def _lag(row: Row, archived: int) -> int | None:
    seen = row["run_end"] if row["watermark"] is None and row["error"] is None else row["watermark"]
    return None if seen is None else archived - 1 - int(seen)


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
