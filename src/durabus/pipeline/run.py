"""A run of the pipeline: archive, project, analyze. It notes each step in ``ops.runs``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from durabus.errors import ConfigurationError, DurabusError, PipelineError
from durabus.model.lake_summary import RunSummary, StepSummary
from durabus.pipeline.analytics import STALE_AFTER, analyze
from durabus.pipeline.archive import ROWS_PER_BATCH, Archive, bronze_end, quarantine
from durabus.pipeline.derive import (
    TRANSFORMS,
    WATERMARKS,
    is_made_by,
    update_silver,
    watermarks,
)
from durabus.pipeline.expectations import (
    Expectation,
    ExpectationResult,
    check_table,
    failures,
    note_results,
)
from durabus.pipeline.gaps import rebuild_from
from durabus.pipeline.input_tables import InputTables, in_order
from durabus.pipeline.lake import Lake
from durabus.pipeline.lake_lock import alone
from durabus.pipeline.news import News, read_news
from durabus.pipeline.projecting import has_read, update_projection
from durabus.pipeline.projections import Projection
from durabus.pipeline.schema import EVENT_LOG, QUARANTINE, RUNS
from durabus.pipeline.session import SPARK_ERRORS, root_cause, with_few_rows
from durabus.pipeline.slos import Slo
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.summary import save_run
from durabus.pipeline.tables import Declaration, EventTable, tables_of_types, update_table
from durabus.pipeline.verification import verify

ANALYZE = "analyze"
AT_ONCE = 4
"""Maximum number of steps that run at the same time. Most of a small step is waiting for Spark and Delta."""
Done = tuple[int, int | None]
"""The rows that a step has read, and the ``seq`` that it has reached; None if it keeps none."""


class ProgressListener(Protocol):
    """A run calls it when a step begins, moves and ends. Row counts are the rows that a step reads."""

    def begins(self, step: str, total: int | None) -> None:
        """Note that a step begins. ``total`` is the number of rows to read; None if it is unknown."""
        ...

    def moves(self, rows: int) -> None:
        """Note that the current step has read ``rows`` so far."""
        ...

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """Note that a step has ended."""
        ...


class Silent:
    """Ignores all calls."""

    def begins(self, step: str, total: int | None) -> None:
        """See ``ProgressListener``."""

    def moves(self, rows: int) -> None:
        """See ``ProgressListener``."""

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """See ``ProgressListener``."""


class RunStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run. It waits for the steps in ``after``. ``total`` is the number of rows to read, if it is known."""

    name: str
    work: Callable[[], Done]
    total: int | None = None
    version: int | None = None
    may_fail: bool = False
    after: tuple[str, ...] = ()


class PipelinePart(StrEnum):
    """The part of the pipeline to run."""

    ARCHIVE = "archive"
    PROJECT = "project"
    ANALYZE = "analyze"
    ALL = "all"


class Pipeline:
    """Runs the steps from one store into one lake."""

    def __init__(
        self,
        lake: Lake,
        url: str,
        declared: Sequence[Declaration] = (),
        *,
        listener: ProgressListener | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        accept_gap: bool = False,
        copy_of: Lake | None = None,
    ) -> None:
        """``declared`` are the tables that the user asks for, and what the user expects of their rows.

        With ``accept_gap`` or ``copy_of``, an empty lake may begin on a log that was trimmed.
        """
        self._lake = lake
        self._url = url
        self._declared = declared
        self._projections = in_order([one for one in declared if isinstance(one, Projection)])
        self._listener = Silent() if listener is None else listener
        self._rows_per_batch = rows_per_batch
        self._accept_gap = accept_gap
        self._copy_of = copy_of
        self._keeping: Future[None] | None = None
        self._run_id = ""
        self._noted: list[tuple[Any, ...]] = []
        self._checked: list[ExpectationResult] | None = None
        self._news: News | None = None
        """The entries that this run has added to bronze, if they are few."""

    def run(
        self, part: PipelinePart = PipelinePart.ALL, *, stale_after: float = STALE_AFTER, wait: float = 0.0
    ) -> None:
        """Process all entries that are committed when the run begins.

        Raises ``PipelineError`` if another run uses the lake for longer than ``wait`` seconds. If a declared table
        fails, everything else is brought up to date, and then this raises ``PipelineError``.
        """
        with (
            StoreSession(self._url) as session,
            alone(self._lake.path, session, wait=wait) as self._keeping,
        ):
            self._run_id, self._noted, self._news = str(uuid.uuid4()), [], None
            self._checked, begun = None, time.monotonic()  # clock: how long a run took
            failed: list[str] = []
            try:
                if part in (PipelinePart.ARCHIVE, PipelinePart.ALL):
                    self._archive(session)
                if part is not PipelinePart.ARCHIVE:
                    failed = self._derive(session, part, stale_after)
            except Exception as failure:
                try:
                    self._note()
                    self._summarize(session, part, begun, [_in_words(failure)])
                except DurabusError as error:  # such as a full disk, which the failure already names
                    failure.add_note(str(error))
                raise
            self._note()
            self._summarize(session, part, begun, failed)
        if failed:
            raise PipelineError(
                f"{len(failed)} tables or expectations failed, everything else is up to date: " + "; ".join(failed)
            )

    def _archive(self, session: StoreSession) -> None:
        archive = Archive(self._lake, session, rows_per_batch=self._rows_per_batch, accept_gap=self._accept_gap)
        if self._copy_of is not None:
            self._lake.create(EVENT_LOG)
            rebuild_from(self._lake, session, self._copy_of)
        since = archive.begin()
        lag = session.ask(lambda store: store.log_lag(since.position))

        def archived() -> Done:
            done = archive.run(lambda total: self._listener.moves(total - since.rows), since=since)
            self._news = read_news(self._lake, since.rows, done.total, archive.entries)
            return done.rows, done.total - 1

        def verified() -> Done:
            return verify(self._lake, session, begin=since, end=archive.end, news=self._news).rows, None

        self._steps(RunStep(name=EVENT_LOG.name, work=archived, total=lag))
        self._steps(
            RunStep(name=QUARANTINE.name, work=lambda: (quarantine(self._lake, self._news), None)),
            RunStep(name="verify", work=verified),
        )

    def _derive(self, session: StoreSession, part: PipelinePart, stale_after: float) -> list[str]:
        """Update silver, the declared tables and the analytics, then check the expectations.

        Returns the errors of declared tables that failed, and of broken expectations.
        """
        analyzes = RunStep(name=ANALYZE, work=lambda: self._analyzed(session, stale_after))
        with nullcontext() if self._news is None else with_few_rows(self._lake.spark):
            if part is PipelinePart.ANALYZE:
                return self._steps(analyzes)
            steps, refused = self._refine()
            failed = self._steps(*steps, *([] if part is PipelinePart.PROJECT else [analyzes]))
            return refused + failed + self._check_expectations()

    def _refine(self) -> tuple[list[RunStep], list[str]]:
        """Update silver. Returns the steps of the declared tables, and an error if typed tables cannot be."""
        # Read this first: a lake in a bucket has no lock, so another run may add entries that silver has not seen.
        newest, seen = bronze_end(self._lake).rows - 1, watermarks(self._lake)
        if self._news is not None:
            self._news.histories  # noqa: B018  (read once, before two steps need it)
        self._steps(*(RunStep(name=name, work=partial(self._refined, name)) for name in TRANSFORMS))
        try:
            tables, refused = tables_of_types(self._lake, self._declared), list[str]()
        except ConfigurationError as error:
            tables, refused = [], [str(error)]
        steps = [
            RunStep(name=one.table, may_fail=True, work=partial(self._filled, one, seen.get((one.table, None)), newest))
            for one in tables
        ]
        inputs = InputTables(self._lake, self._projections, tables)
        steps += [
            RunStep(
                name=one.name,
                version=one.version,
                may_fail=True,
                after=tuple(table.removeprefix("gold.") for table in one.inputs),
                work=partial(self._projected, one, seen.get((one.name, one.version)), newest, inputs),
            )
            for one in self._projections
        ]
        return steps, refused

    def _refined(self, name: str) -> Done:
        return update_silver(self._lake, name, self._news), None

    def _filled(self, table: EventTable, seen: int | None, newest: int) -> Done:
        if seen == newest and is_made_by(self._lake, table):
            return 0, newest
        return update_table(self._lake, table, seen=seen, news=self._news), newest

    def _projected(self, projection: Projection, seen: int | None, newest: int, inputs: InputTables) -> Done:
        lake = self._lake
        if seen == newest and is_made_by(lake, projection) and has_read(lake, projection, inputs):
            return 0, newest
        return update_projection(lake, projection, seen=seen, news=self._news, inputs=inputs), newest

    def _check_expectations(self) -> list[str]:
        """Check the expectations of each table. Returns the errors, and the broken ones that fail the run."""
        by_table: dict[str, list[Expectation]] = {}
        for one in self._declared:
            if isinstance(one, Expectation):
                by_table.setdefault(one.table, []).append(one)
        results: dict[str, list[ExpectationResult]] = {}

        def checked(table: str) -> Done:
            results[table] = check_table(self._lake, table, by_table[table])
            return results[table][0].rows, None

        errors = self._steps(
            *(
                RunStep(name=f"expectations of {table}", may_fail=True, work=partial(checked, table))
                for table in by_table
            )
        )
        found = [one for table in by_table for one in results.get(table, ())]
        now = datetime.now(UTC)  # clock: when people read that it ran
        note_results(self._lake, found, run_id=self._run_id, checked_at=now)
        self._checked = found
        return errors + failures(found)

    def _analyzed(self, session: StoreSession, stale_after: float) -> Done:
        slos = [one for one in self._declared if isinstance(one, Slo)]
        now = session.ask(lambda store: store.now())
        return analyze(self._lake, now, stale_after, slos=slos, news=self._news), None

    def _steps(self, *steps: RunStep) -> list[str]:
        """Run steps side by side. Returns the errors of those that may fail; another error is raised at the end."""
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()  # raises: another run may write the lake by now
        failed: list[str] = []
        failure: BaseException | None = None
        with ThreadPoolExecutor(AT_ONCE) as threads:
            running: dict[str, Future[Ended]] = {}
            for step in steps:  # a step comes after those that it waits for, so these have a thread before it
                before = {name: running[name] for name in step.after if name in running}
                running[step.name] = threads.submit(_timed, step.work, before)
            for step in steps:
                self._listener.begins(step.name, step.total)
                ended = running[step.name].result()
                told = None if ended.error is None else _in_words(ended.error)
                self._noted.append(
                    (self._run_id, step.name, step.version, ended.watermark, ended.rows, ended.seconds, ended.at, told)
                )
                if told is None:
                    self._listener.ends(step.name, ended.rows, ended.seconds)
                elif step.may_fail:
                    failed.append(told if told.startswith(f"{step.name}: ") else f"{step.name}: {told}")
                elif failure is None:
                    failure = ended.error
                    if isinstance(failure, SPARK_ERRORS):
                        failure = PipelineError(f"{step.name}: {told}")
                        failure.__cause__ = ended.error
        if failure is not None:
            raise failure
        return failed

    def _note(self) -> None:
        if not self._noted:
            return
        known = watermarks(self._lake) if self._lake.memory.get(RUNS.name, WATERMARKS) is not None else None
        try:
            self._lake.append(self._lake.spark.createDataFrame(runs_table(self._noted)).coalesce(1), RUNS)
        except SPARK_ERRORS as error:
            raise PipelineError(f"{RUNS.name}: {root_cause(error)}") from error
        if known is not None:
            new = {(row[1], row[2]): row[3] for row in self._noted if row[3] is not None and row[7] is None}
            self._lake.memory.keep(RUNS.name, WATERMARKS, known | new)

    def _summarize(self, session: StoreSession, part: PipelinePart, begun: float, errors: list[str]) -> None:
        """Save in the store what the dashboard shows of this run and its lake."""
        steps = [
            StepSummary(
                name=step if version is None else f"{step} v{version}",
                finished_at=at,
                seconds=seconds,
                rows=rows,
                error=error,
            )
            for _, step, version, _, rows, seconds, at, error in self._noted
        ]
        run = RunSummary(
            run_id=self._run_id,
            part=part.value,
            finished_at=datetime.now(UTC),  # clock: when people read that it ran
            seconds=time.monotonic() - begun,  # clock: how long a run took
            rows=sum(step.rows for step in steps if step.name == EVENT_LOG.name),
            errors=errors,
        )
        save_run(self._lake, session, run, steps, self._checked)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a step has ended."""

    rows: int = 0
    watermark: int | None = None
    seconds: float
    at: datetime
    error: BaseException | None = None


def _timed(work: Callable[[], Done], before: Mapping[str, Future[Ended]]) -> Ended:
    failed = [name for name, future in before.items() if future.result().error is not None]
    if failed:
        work = partial(_refuse, f"its input {failed[0]} has failed")
    started = time.monotonic()  # clock: how long a step took
    rows, watermark, error = 0, None, None
    try:
        rows, watermark = work()
    except Exception as raised:  # noqa: BLE001  (a projection is the user's code, and may raise anything)
        error = raised
    seconds = time.monotonic() - started  # clock: how long a step took
    at = datetime.now(UTC)  # clock: when people read that it ran
    return Ended(rows=rows, watermark=watermark, seconds=seconds, at=at, error=error)


def _refuse(why: str) -> Done:
    raise PipelineError(why)


def _in_words(error: BaseException) -> str:
    return root_cause(error) if isinstance(error, SPARK_ERRORS) else str(error) or type(error).__name__


def runs_table(noted: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Return rows of ``ops.runs`` as Arrow."""
    kinds = [pa.string(), pa.string(), *[pa.int64()] * 3, pa.float64(), pa.timestamp("us", tz="UTC"), pa.string()]
    columns = zip(*noted, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, names=list(RUNS.columns))
