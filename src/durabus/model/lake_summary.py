"""What a lake tells about itself. The pipeline saves it in the store, so that a server can show it without Spark."""

from __future__ import annotations

from datetime import datetime

import msgspec

LAKE = "lake:"
"""The name under which a store keeps the summary of a lake: this, and the id of the lake."""


class TableSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One table, with its size in bytes. ``rows`` and ``size`` are None if they are not known."""

    name: str
    rows: int | None = None
    size: int | None = None


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a step."""

    name: str
    finished_at: datetime
    seconds: float
    rows: int
    """The number of rows that the step has read."""
    seen: int | None = None
    """The number of archived entries up to which the step has ever succeeded; None if it never has."""
    error: str | None = None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the pipeline. ``rows`` is the number of log entries that it has archived."""

    run_id: str
    part: str
    finished_at: datetime
    seconds: float
    rows: int
    errors: list[str]


class ExpectationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The newest result of an expectation, without the rows that break it."""

    name: str
    table_name: str
    action: str
    rows: int
    broken: int
    checked_at: datetime


class ProofSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The newest proof."""

    number: int
    made_at: datetime
    holds: bool
    entries: int
    differing: int
    missing: int
    trimmed: int
    hash: str


class LakeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a lake after its last run or proof."""

    lake_id: str
    path: str
    saved_at: datetime
    archived: int
    """The number of log entries in ``bronze.event_log``."""
    quarantined: int | None
    gaps: int
    trimmed_unread: str
    """The sum of the gap ledger, in words."""
    tables: list[TableSummary]
    steps: list[StepSummary]
    runs: list[RunSummary]
    """The newest runs, newest first."""
    expectations: list[ExpectationSummary]
    proof: ProofSummary | None = None
