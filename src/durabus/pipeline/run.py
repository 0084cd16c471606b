"""A run of the pipeline: archive, project, analyze, in this order. It notes each step in ``ops.runs``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from durabus.errors import PipelineError
from durabus.pipeline.analytics import STALE_AFTER, analyze
from durabus.pipeline.archive import ROWS_PER_BATCH, Archive, quarantine
from durabus.pipeline.derive import TRANSFORMS, update_projection, update_silver, watermarks
from durabus.pipeline.lake import Lake, lake_lock
from durabus.pipeline.projections import Projection
from durabus.pipeline.schema import EVENT_LOG, RUNS
from durabus.pipeline.session import SPARK_ERRORS, root_cause
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import verify

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
        projections: Sequence[Projection] = (),
        *,
        listener: ProgressListener | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
    ) -> None:
        self._lake = lake
        self._url = url
        self._projections = projections
        self._listener = Silent() if listener is None else listener
        self._rows_per_batch = rows_per_batch
        self._run_id = ""
        self._noted: list[tuple[Any, ...]] = []
        self._newest: int | None = None
        """The newest ``seq`` of bronze when this run first looked; None before that."""

    def run(
        self, part: PipelinePart = PipelinePart.ALL, *, stale_after: float = STALE_AFTER, wait: float = 0.0
    ) -> None:
        """Process all entries that are committed when the run begins.

        Raises ``PipelineError`` if another run uses the lake for longer than ``wait`` seconds.
        """
        with lake_lock(self._lake.path, wait=wait), StoreSession(self._url) as session:
            self._run_id, self._noted, self._newest = str(uuid.uuid4()), [], None
            try:
                if part in (PipelinePart.ARCHIVE, PipelinePart.ALL):
                    self._archive(session)
                if part in (PipelinePart.PROJECT, PipelinePart.ALL):
                    self._project()
                if part in (PipelinePart.ANALYZE, PipelinePart.ALL):
                    self._step("analyze", lambda: self._analyzed(session, stale_after, part))
            except Exception as failure:
                try:
                    self._note()
                except PipelineError as error:  # such as a full disk, which the failure already names
                    failure.add_note(str(error))
                raise
            self._note()

    def _archive(self, session: StoreSession) -> None:
        archive = Archive(self._lake, session, rows_per_batch=self._rows_per_batch)
        since = archive.begin()
        lag = session.ask(lambda store: store.log_lag(since.position))

        def archived() -> Done:
            done = archive.run(lambda total: self._listener.moves(total - since.rows), since=since)
            self._newest = done.total - 1
            return done.rows, self._newest

        self._step("bronze.event_log", archived, total=lag)
        self._step("bronze.quarantine", lambda: (quarantine(self._lake), None))
        self._step("verify", lambda: (verify(self._lake, session, end=archive.end).rows, None))

    def _project(self) -> None:
        # Read this first: a lake in a bucket has no lock, so another run may add entries that silver has not seen.
        newest, seen = self._newest_seq(), watermarks(self._lake)
        for name in TRANSFORMS:
            self._step(name, lambda name=name: (update_silver(self._lake, name), None))  # type: ignore[misc]
        for projection in self._projections:

            def projected(projection: Projection = projection) -> Done:
                before = seen.get((projection.name, projection.version))
                if before == newest and self._lake.exists(projection.table):
                    return 0, newest
                return update_projection(self._lake, projection, seen=before), newest

            self._step(projection.name, projected, version=projection.version)

    def _analyzed(self, session: StoreSession, stale_after: float, part: PipelinePart) -> Done:
        """Write the tables of analytics that have changed.

        Only a run of all parts knows which entries the tables include, because it has just updated them.
        """
        newest = self._newest_seq() if part is PipelinePart.ALL else None
        news = newest is None or newest != watermarks(self._lake).get(("analyze", None))
        analyze(self._lake, session.ask(lambda store: store.now()), stale_after, news=news)
        return self._newest_seq() + 1 if news else 0, newest

    def _newest_seq(self) -> int:
        """Return the newest ``seq`` of bronze. A run reads it once.

        In a bucket another run may add entries meanwhile; they are news for the next run.
        """
        if self._newest is None:
            newest = self._lake.value(EVENT_LOG.name, "max(seq)")
            self._newest = -1 if newest is None else int(newest)
        return self._newest

    def _step(
        self, name: str, work: Callable[[], Done], *, total: int | None = None, version: int | None = None
    ) -> None:
        self._listener.begins(name, total)
        started = time.monotonic()  # clock: how long a step took
        rows, watermark, failure = 0, None, None
        try:
            rows, watermark = work()
        except SPARK_ERRORS as error:
            failure = root_cause(error)
            raise PipelineError(f"{name}: {failure}") from error
        except Exception as error:
            failure = str(error)
            raise
        finally:
            seconds = time.monotonic() - started  # clock: how long a step took
            finished = datetime.now(UTC)  # clock: when people read that it ran
            self._noted.append((self._run_id, name, version, watermark, rows, seconds, finished, failure))
        self._listener.ends(name, rows, seconds)

    def _note(self) -> None:
        if not self._noted:
            return
        try:
            self._lake.append(self._lake.spark.createDataFrame(self._noted, RUNS.ddl), RUNS)
        except SPARK_ERRORS as error:
            raise PipelineError(f"{RUNS.name}: {root_cause(error)}") from error
