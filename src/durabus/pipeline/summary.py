"""Saves what a lake tells about itself in the store, beside its verified position: the dashboard shows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.lake_summary import (
    LAKE,
    ExpectationSummary,
    LakeSummary,
    ProofSummary,
    RunSummary,
    StepSummary,
    TableSummary,
)
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.expectations import ExpectationResult
from durabus.pipeline.gaps import lake_id, read_gaps, save_text, trimmed_unread
from durabus.pipeline.lake import Lake, is_url
from durabus.pipeline.schema import GAPS, QUARANTINE
from durabus.pipeline.store_session import StoreSession

MAX_RUNS = 20
"""Maximum number of runs in a summary."""
MAX_ERROR_CHARS = 500
AT_LEAST_EVERY = 60.0
"""Seconds after which a run that found nothing new saves its summary nevertheless."""
_ROWS, _GAPS = "row count", "gaps"


def read_summary(session: StoreSession, own: str) -> LakeSummary | None:
    """Return the summary of the lake with this id; None if the store has none."""
    found = session.ask(lambda store: store.read_position(f"{LAKE}{own}"))
    return msgspec.json.decode(found, type=LakeSummary) if found else None


def save_run(
    lake: Lake,
    session: StoreSession,
    run: RunSummary,
    steps: Sequence[StepSummary],
    expectations: Sequence[ExpectationResult] | None,
) -> None:
    """Save the summary after a run. ``expectations`` is None if the run has not checked any.

    If the summary is younger than ``AT_LEAST_EVERY`` seconds and the run found nothing new, nothing is saved.
    """
    own = lake_id(lake)
    if not own:
        return
    before, archived = read_summary(session, own), bronze_end(lake).rows
    known = {} if before is None else {step.name: step for step in before.steps}
    age = AT_LEAST_EVERY if before is None else (run.finished_at - before.saved_at).total_seconds()
    news = run.errors or any(step.name not in known or known[step.name].seen != archived for step in steps)
    if age < AT_LEAST_EVERY and not news:
        return
    for step in steps:
        old = known.get(step.name)
        seen = archived if step.error is None else None if old is None else old.seen
        known[step.name] = msgspec.structs.replace(step, seen=seen, error=_short(step.error))
    if expectations is not None:
        checked = [
            ExpectationSummary(
                name=one.name,
                table_name=one.table_name,
                action=one.action,
                rows=one.rows,
                broken=one.broken,
                checked_at=run.finished_at,
            )
            for one in expectations
        ]
    else:
        checked = [] if before is None else before.expectations
    tables = _tables(lake, known)
    told, gaps = _gaps(lake)
    run = msgspec.structs.replace(run, errors=[_short(error) or "" for error in run.errors])
    _save(
        session,
        LakeSummary(
            lake_id=own,
            path=lake.path,
            saved_at=run.finished_at,
            archived=archived,
            quarantined=next((one.rows for one in tables if one.name == QUARANTINE.name), 0),
            gaps=gaps,
            trimmed_unread=told,
            tables=tables,
            steps=list(known.values()),
            runs=[run, *([] if before is None else before.runs)][:MAX_RUNS],
            expectations=checked,
            proof=None if before is None else before.proof,
        ),
    )


def save_proof(lake: Lake, session: StoreSession, proof: ProofSummary) -> None:
    """Add a proof to the summary of a lake, if it has one."""
    before = read_summary(session, lake_id(lake))
    if before is not None:
        _save(session, msgspec.structs.replace(before, proof=proof, saved_at=proof.made_at))


def _save(session: StoreSession, summary: LakeSummary) -> None:
    text = msgspec.json.encode(summary).decode()
    session.ask(lambda store: save_text(store, f"{LAKE}{summary.lake_id}", text))


def _tables(lake: Lake, steps: dict[str, StepSummary]) -> list[TableSummary]:
    """Return the tables with their numbers of rows. Only tables that have changed are counted.

    In a bucket, listing and counting the tables takes longer than the rest of a small run. There, these are the tables
    that steps have made, and their rows are not counted.
    """
    if is_url(lake.path):
        return [TableSummary(name=name, rows=None) for name in sorted(steps) if "." in name and " " not in name]
    names = lake.tables()
    known: dict[str, int] = {name: rows for name in names if (rows := lake.memory.get(name, _ROWS)) is not None}
    changed = [name for name in names if name not in known]
    if changed:
        counts = [lake.read(name).agg(F.count("*").alias("rows")).withColumn("name", F.lit(name)) for name in changed]
        for row in reduce(DataFrame.unionAll, counts).collect():
            known[row["name"]] = row["rows"]
            lake.memory.keep(row["name"], _ROWS, row["rows"])
    return [TableSummary(name=name, rows=known[name]) for name in names]


def _gaps(lake: Lake) -> tuple[str, int]:
    found: tuple[str, int] | None = lake.memory.get(GAPS.name, _GAPS)
    if found is None:
        gaps = read_gaps(lake)
        found = trimmed_unread(gaps), len(gaps)
        lake.memory.keep(GAPS.name, _GAPS, found)
    return found


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}…"
