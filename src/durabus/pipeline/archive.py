"""From the log of a store to ``bronze.event_log``: every entry once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import InvalidEventError, PipelineError
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.statuses import Action, EventStatus
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import EVENT_LOG, QUARANTINE
from durabus.pipeline.session import SPARK_ERRORS, root_cause
from durabus.pipeline.source import ROWS_PER_PARTITION, log_stretch, pages_of
from durabus.pipeline.store_session import StoreSession
from durabus.store.contract import EventStore
from durabus.store.log import START

ROWS_PER_BATCH = 2_000_000
"""Few large batches: a commit costs about a second, whatever its size."""

APP = "durabus.archive"
_WHICH = tuple(LOG_COLUMNS.index(name) for name in ("event_id", "action"))

OnBatch = Callable[[int], None]
"""Called after each batch with the number of rows that bronze has now."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows bronze has, which is the next ``seq``, and what its newest entry is."""

    rows: int = 0
    position: str = START
    before: str = START
    """The position of the entry before the newest."""
    entry: tuple[str, str] | None = None
    """``event_id`` and ``action`` of the newest."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What a run added, and where bronze ends now."""

    rows: int
    total: int


def bronze_end(lake: Lake) -> Reached:
    """Cheap however many rows there are: Delta knows the largest ``seq``, and in which file it is."""
    newest = lake.value(EVENT_LOG.name, "max(seq)")
    if newest is None:
        return Reached()
    last = lake.read(EVENT_LOG.name).where(F.col("seq") >= newest - 1).orderBy("seq")
    *before, row = last.select("position", "event_id", "action").collect()
    return Reached(
        rows=int(newest) + 1,
        position=row["position"],
        before=before[0]["position"] if before else START,
        entry=(row["event_id"], row["action"]),
    )


def event_log(log: DataFrame, first_seq: int) -> DataFrame:
    """``bronze.event_log`` from rows of the durabus source, the first of which gets ``first_seq``."""
    return log.select(
        (F.lit(first_seq) + F.col("ordinal")).alias("seq"),
        F.to_date("at").alias("day"),
        *(column for column in EVENT_LOG.columns if column not in ("seq", "day", "unparsable")),
        unparsable().alias("unparsable"),
    ).select(*EVENT_LOG.columns)


def unparsable() -> Column:
    """What does not parse in an entry, as a text; NULL if everything does."""
    checks = {
        "unknown action": ~F.col("action").isin([action.value for action in Action]),
        "unknown status": ~F.col("status").isin([status.value for status in EventStatus]),
        "no instant": F.col("at").isNull() | F.col("created_at").isNull(),
        "payload is not JSON": _broken("payload", F.try_parse_json("payload")),
        "metadata is not JSON": _broken("metadata", F.try_parse_json("metadata")),
        "results are not JSON": _broken("results", F.try_parse_json("results")),
        "tags are no list": _broken("tags", F.from_json("tags", "ARRAY<STRING>")),
        "errors are no list": _broken("errors", F.from_json("errors", "ARRAY<STRING>")),
    }
    found = F.concat_ws("; ", *(F.when(broken, F.lit(name)) for name, broken in checks.items()))
    return F.when(found != "", found)


def _broken(column: str, parsed: Column) -> Column:
    return F.col(column).isNotNull() & parsed.isNull()


class Archive:
    """The way from one store into one lake.

    The table itself says how far it is: its newest row has the cursor to go on from, so data and progress are one
    commit. That commit carries the first row's ``seq`` in the table's transaction log: of two writers that begin at the
    same row (a killed run may leave a Java behind with its commit on the way), one is refused.
    """

    def __init__(self, lake: Lake, session: StoreSession, *, rows_per_batch: int = ROWS_PER_BATCH) -> None:
        self._lake = lake
        self._session = session
        self._rows_per_task = min(rows_per_batch, ROWS_PER_PARTITION)
        self._rows_per_page, pages = pages_of(self._rows_per_task)
        self._pages_per_batch = rows_per_batch // self._rows_per_task * pages

    def run(self, on_batch: OnBatch = lambda _: None, *, since: Reached | None = None) -> Archived:
        """Archive what is committed now, batch by batch, then return. ``since``: what ``begin`` has just answered."""
        reached = self.begin() if since is None else since
        before = reached.rows
        head = self._session.ask(lambda store: store.log_head())
        while reached.position != head and (ends := self._cut(reached.position, head)):
            self._write(reached, ends)
            total, reached = reached.rows, bronze_end(self._lake)
            if reached.rows <= total:
                raise PipelineError(
                    f"{EVENT_LOG.name} did not grow beyond row {total}: it was restored to an older version or another "
                    "run writes it; archive into a new lake"
                )
            on_batch(reached.rows)
        self._lake.create(EVENT_LOG)  # for a log that is empty
        return Archived(rows=reached.rows - before, total=reached.rows)

    def begin(self) -> Reached:
        """Where bronze ends. Raises ``PipelineError`` if the store's log has something else there.

        Positions are small numbers in some stores: without this look, the log of a second store would silently go on
        behind that of the first, and nobody can take an entry out of bronze again.
        """
        reached = bronze_end(self._lake)
        if reached.rows:
            self._session.ask(lambda store: self._compare(store, reached))
        return reached

    async def _compare(self, store: EventStore, reached: Reached) -> None:
        try:
            found = await store.read_log_rows(after=reached.before, until=reached.position)
        except InvalidEventError as error:  # such a position was never given
            raise self._another_store() from error
        # No entry there: it was trimmed, and verified before.
        if found.rows and tuple(found.rows[-1][n] for n in _WHICH) != reached.entry:
            raise self._another_store()

    def _another_store(self) -> PipelineError:
        return PipelineError(
            f"the lake {self._lake.path} does not end where this store's log goes on: it has the log of another store, "
            "or this one was set back to an older state; choose another --lake for it"
        )

    def _cut(self, after: str, head: str) -> list[str]:
        """Where the pages of a batch after this position end; none if there is nothing up to ``head``."""
        rows, limit = self._rows_per_page, self._pages_per_batch
        return self._session.ask(lambda store: store.cut_log(after=after, until=head, rows=rows, limit=limit))

    def _write(self, reached: Reached, ends: list[str]) -> None:
        rows = log_stretch(self._lake.spark, self._session, reached.position, ends, self._rows_per_task)
        try:
            self._lake.append(event_log(rows, reached.rows), EVENT_LOG, app=APP, version=reached.rows)
        except SPARK_ERRORS as error:
            raise PipelineError(f"archiving stopped: {root_cause(error)}") from error


def quarantine(lake: Lake) -> int:
    """Copy what does not parse, and is not there yet, to ``bronze.quarantine``. Returns how many rows the table has."""
    lake.create(QUARANTINE)
    newest = lake.value(QUARANTINE.name, "max(seq)")
    bad = lake.read(EVENT_LOG.name).where(
        F.col("unparsable").isNotNull() & (F.col("seq") > (-1 if newest is None else newest))
    )
    if not bad.isEmpty():
        lake.append(bad, QUARANTINE, app=f"{APP}.quarantine", version=0 if newest is None else int(newest) + 1)
    return int(lake.value(QUARANTINE.name, "count(*)"))
