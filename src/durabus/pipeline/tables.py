"""The tables of the lake: names, columns, keys, layout."""

from __future__ import annotations

import msgspec

from durabus.pipeline.log_schema import COLUMNS, SPARK

LOG_DDL = SPARK.removesuffix(", ordinal BIGINT")


MERGED = {"delta.enableDeletionVectors": "true"}
"""Properties of tables whose rows are replaced: a merge marks rows as deleted instead of writing their files again."""
APPENDED = {"delta.appendOnly": "true"}
"""Properties of tables whose rows stay."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One Delta table. ``name`` is ``schema.table``; ``key`` is what its rows are merged by."""

    name: str
    ddl: str
    key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    append_only: bool = False
    searched_by: tuple[str, ...] = ()
    """Columns whose smallest and largest value Delta notes for each file; empty: of the first 32, which takes time."""

    @property
    def properties(self) -> dict[str, str]:
        """What Delta is told when the table is made."""
        searched = {"delta.dataSkippingStatsColumns": ",".join(self.searched_by)} if self.searched_by else {}
        return (APPENDED if self.append_only else MERGED) | searched

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(field.split()[0] for field in self.ddl.split(", "))


EVENT_LOG = Table(
    name="bronze.event_log",
    ddl=f"seq BIGINT, day DATE, {LOG_DDL}, unparsable STRING",
    partitioned_by=("day",),
    append_only=True,
    searched_by=("seq", "position", "id", "event_id", "at", "created_at"),
)
"""Every entry of the log, once, as the store had it. ``seq`` counts them in commit order; ``unparsable`` is set where a
column does not parse."""

QUARANTINE = Table(name="bronze.quarantine", ddl=EVENT_LOG.ddl, append_only=True)
"""The entries whose ``unparsable`` is set, for people who repair them."""

EVENTS = Table(
    name="silver.events",
    ddl=(
        "id BIGINT, event_id STRING, bus STRING, type STRING, status STRING, generation BIGINT, attempts BIGINT, "
        "claims BIGINT, failures BIGINT, published_at TIMESTAMP, picked_at TIMESTAMP, ended_at TIMESTAMP, "
        "last_at TIMESTAMP, waiting_ms DOUBLE, running_ms DOUBLE, end_to_end_ms DOUBLE, worker_id STRING, "
        "last_error STRING, errors ARRAY<STRING>, tags ARRAY<STRING>, parent_id STRING, metadata STRING, "
        "payload STRING, results STRING, replay_of STRING, first_seq BIGINT, last_seq BIGINT"
    ),
    key=("id",),
)
"""One row per event: where it stands, and how long it took."""

ATTEMPTS = Table(
    name="silver.attempts",
    ddl=(
        "id BIGINT, fence BIGINT, event_id STRING, bus STRING, type STRING, generation BIGINT, attempt BIGINT, "
        "worker_id STRING, picked_at TIMESTAMP, started_at TIMESTAMP, ended_at TIMESTAMP, outcome STRING, "
        "error STRING, reason STRING, execution_time_ms DOUBLE, held_ms DOUBLE, last_seq BIGINT"
    ),
    key=("id", "fence"),
)
"""One row per claim: who had the event, from when to when, and how it ended (``outcome`` NULL: it still runs)."""

RUNS = Table(
    name="ops.runs",
    ddl=(
        "run_id STRING, step STRING, version BIGINT, watermark BIGINT, rows BIGINT, seconds DOUBLE, "
        "finished_at TIMESTAMP, error STRING"
    ),
    append_only=True,
)
"""What each step of each run did; a projection's ``watermark`` is the ``seq`` it has seen."""

LOG_COLUMNS = COLUMNS
CORE_TABLES = (EVENT_LOG, QUARANTINE, EVENTS, ATTEMPTS, RUNS)
