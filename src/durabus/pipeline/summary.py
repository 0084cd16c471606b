"""Saves what a lake tells about itself in the store, beside its verified position: the dashboard shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

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
_SIZE, _GAPS = "size", "gaps"


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
    """Return the tables with their sizes. Those in a bucket are the tables of steps, and their sizes are unknown.

    A query over all tables would take longer than the rest of a small run, so this asks Delta's checksum files.
    """
    if is_url(lake.path):
        return [TableSummary(name=name) for name in sorted(steps) if "." in name and " " not in name]
    made = []
    for name in lake.tables():
        known: TableSummary | None = lake.memory.get(name, _SIZE)
        if known is None:
            known = _sized(lake, name)
            lake.memory.keep(name, _SIZE, known)
        made.append(known)
    return made


class TableFile(msgspec.Struct, frozen=True):
    """A file of a table, in a checksum file. ``stats`` is JSON."""

    stats: str | None = None


class TableChecksum(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of a version checksum file of Delta that are used. A writer may leave out all but the first."""

    table_size_bytes: int
    all_files: list[TableFile] | None = None
    num_deleted_records_opt: int | None = None


class FileStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """The statistics of a file of a table."""

    num_records: int | None = None


def _sized(lake: Lake, name: str) -> TableSummary:
    commit = lake.memory.newest_commit(name)
    checksum = None if commit is None else Path(lake.location(name), "_delta_log", commit[0]).with_suffix(".crc")
    if checksum is None or not checksum.exists():  # a writer may leave it out
        return TableSummary(name=name)
    found = msgspec.json.decode(checksum.read_bytes(), type=TableChecksum)
    files = [msgspec.json.decode(file.stats or "{}", type=FileStatistics) for file in found.all_files or ()]
    counts = [file.num_records for file in files if file.num_records is not None]
    known = found.all_files is not None and len(counts) == len(files)
    rows = sum(counts) - (found.num_deleted_records_opt or 0) if known else None
    return TableSummary(name=name, rows=rows, size=found.table_size_bytes)


def _gaps(lake: Lake) -> tuple[str, int]:
    found: tuple[str, int] | None = lake.memory.get(GAPS.name, _GAPS)
    if found is None:
        gaps = read_gaps(lake)
        found = trimmed_unread(gaps), len(gaps)
        lake.memory.keep(GAPS.name, _GAPS, found)
    return found


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}…"
