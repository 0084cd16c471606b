"""Copies the log of a store to ``bronze.event_log``: every entry once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import InvalidEventError, PipelineError
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.statuses import Action, EventStatus
from durabus.pipeline.gaps import follow
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import News
from durabus.pipeline.schema import EVENT_LOG, QUARANTINE
from durabus.pipeline.session import SPARK_ERRORS, root_cause
from durabus.pipeline.source import ROWS_PER_PARTITION, pages_of, read_log_part
from durabus.pipeline.store_session import StoreSession
from durabus.store.contract import EventStore
from durabus.store.log import START

ROWS_PER_BATCH = 2_000_000
"""Maximum number of entries in one commit. Batches are large, because a commit takes about a second for any size."""

APP = "durabus.archive"
_END, _SEARCHED = "end", "searched"
_WHICH = tuple(LOG_COLUMNS.index(name) for name in ("event_id", "action"))

OnBatch = Callable[[int], None]
"""A function that is called after each batch with the number of rows that bronze has now."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The end of bronze: its number of rows, which is the next ``seq``, and its newest entry."""

    rows: int = 0
    position: str = START
    before: str = START
    """The position of the entry before the newest."""
    entry: tuple[str, str] | None = None
    """``event_id`` and ``action`` of the newest entry."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a run added, and all rows of bronze."""

    rows: int
    total: int


def bronze_end(lake: Lake) -> Reached:
    """Return the end of bronze. This is cheap for any number of rows: Delta knows the file with the largest ``seq``."""
    known: Reached | None = lake.memory.get(EVENT_LOG.name, _END)
    if known is not None:
        return known
    newest = lake.value(EVENT_LOG.name, "max(seq)")
    return Reached() if newest is None else _end_from(lake, int(newest) - 1)


def _end_from(lake: Lake, seq: int) -> Reached:
    """Return the end of bronze, which has an entry with this ``seq`` or a greater one."""
    log = lake.read(EVENT_LOG.name).where(F.col("seq") >= seq).select("seq", "position", "event_id", "action")
    row, *before = log.orderBy(F.desc("seq")).limit(2).collect()
    reached = Reached(
        rows=row["seq"] + 1,
        position=row["position"],
        before=before[0]["position"] if before else START,
        entry=(row["event_id"], row["action"]),
    )
    lake.memory.keep(EVENT_LOG.name, _END, reached)
    return reached


def _end_of(lake: Lake, before: Reached, entries: pa.Table) -> Reached:
    """Return the end of bronze. ``entries`` are its rows from the end ``before`` on."""
    rows = entries.select(["seq", "position", "event_id", "action"]).sort_by("seq").to_pylist()
    newest = rows[-1]
    reached = Reached(
        rows=newest["seq"] + 1,
        position=newest["position"],
        before=rows[-2]["position"] if len(rows) > 1 else before.position,
        entry=(newest["event_id"], newest["action"]),
    )
    lake.memory.keep(EVENT_LOG.name, _END, reached)
    return reached


def event_log(log: DataFrame, first_seq: int) -> DataFrame:
    """Return ``bronze.event_log`` from rows of the durabus source. The first row gets ``first_seq``."""
    return log.select(
        (F.lit(first_seq) + F.col("ordinal")).alias("seq"),
        F.to_date("at").alias("day"),
        *(column for column in EVENT_LOG.columns if column not in ("seq", "day", "unparsable")),
        unparsable().alias("unparsable"),
    ).select(*EVENT_LOG.columns)


def unparsable() -> Column:
    """Return a text that names the columns of an entry that do not parse; NULL if all parse."""
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
    """Copies the log of one store into one lake.

    The newest row of the table has the position to continue from, so data and progress are one commit. The commit also
    carries the ``seq`` of its first row in the table's transaction log. Delta therefore refuses the second of two
    writers that begin at the same row. A killed run may leave such a writer behind: its Java may still commit.
    """

    def __init__(
        self, lake: Lake, session: StoreSession, *, rows_per_batch: int = ROWS_PER_BATCH, accept_gap: bool = False
    ) -> None:
        self._lake = lake
        self._session = session
        self._accept_gap = accept_gap
        self.end = Reached()
        """The end of bronze after the last ``begin`` or ``run``."""
        self.entries: pa.Table | None = None
        """The rows that the last ``run`` added to bronze, as the table has them; None if they are not in memory."""
        self._rows_per_task = min(rows_per_batch, ROWS_PER_PARTITION)
        self._rows_per_page, pages = pages_of(self._rows_per_task)
        self._pages_per_batch = rows_per_batch // self._rows_per_task * pages

    def run(self, on_batch: OnBatch = lambda _: None, *, since: Reached | None = None) -> Archived:
        """Archive all entries that are committed now, in batches. ``since`` is what ``begin`` has just returned."""
        reached = self.begin() if since is None else since
        before, self.entries = reached.rows, None
        head = self._session.ask(lambda store: store.log_head())
        while reached.position != head and (ends := self._cut(reached.position, head)):
            self._write(reached, ends)
            total = reached.rows
            reached, self.entries = self._read_back(reached, few=total == before and len(ends) == 1)
            if reached.rows <= total:
                raise PipelineError(
                    f"{EVENT_LOG.name} did not grow beyond row {total}: it was restored to an older version or another "
                    "run writes it; archive into a new lake"
                )
            on_batch(reached.rows)
        self.end = reached
        return Archived(rows=reached.rows - before, total=reached.rows)

    def _read_back(self, before: Reached, *, few: bool) -> tuple[Reached, pa.Table | None]:
        """Return the end of bronze after a write, as the table has it, and the new rows if they are few."""
        if few:
            entries = self._lake.read(EVENT_LOG.name).where(F.col("seq") >= before.rows).toArrow()
            return (_end_of(self._lake, before, entries), entries) if len(entries) else (before, None)
        return (_end_from(self._lake, before.rows - 1) if before.rows else bronze_end(self._lake)), None

    def begin(self) -> Reached:
        """Return the end of bronze. Raises ``PipelineError`` if the store's log has another entry at this position.

        Positions are small numbers in some stores. Without this check, a run could append the log of a second store to
        the log of the first, and no entry can be removed from bronze. From here on, no trim of the store passes the
        verified position of this lake.
        """
        self._lake.create(EVENT_LOG)  # its id is the name of the lake in the store
        reached = bronze_end(self._lake)
        if reached.rows:
            self._session.ask(lambda store: self._compare(store, reached))
        follow(self._lake, self._session, reached.position, accept_gap=self._accept_gap)
        self.end = reached
        return reached

    async def _compare(self, store: EventStore, reached: Reached) -> None:
        try:
            found = await store.read_log_rows(after=reached.before, until=reached.position)
        except InvalidEventError as error:  # the store has never given out this position
            raise self._another_store() from error
        # If the log has no entry there, it was trimmed. Only verified entries are trimmed, so no check is needed.
        if found.rows and tuple(found.rows[-1][n] for n in _WHICH) != reached.entry:
            raise self._another_store()

    def _another_store(self) -> PipelineError:
        return PipelineError(
            f"the lake {self._lake.path} does not end where this store's log goes on: it has the log of another store, "
            "or this one was set back to an older state; choose another --lake for it"
        )

    def _cut(self, after: str, head: str) -> list[str]:
        """Return the ends of the pages of the batch after this position; none if there is no entry up to ``head``."""
        rows, limit = self._rows_per_page, self._pages_per_batch
        return self._session.ask(lambda store: store.cut_log(after=after, until=head, rows=rows, limit=limit))

    def _write(self, reached: Reached, ends: list[str]) -> None:
        rows = read_log_part(self._lake.spark, self._session, reached.position, ends, self._rows_per_task)
        try:
            self._lake.append(event_log(rows, reached.rows), EVENT_LOG, app=APP, version=reached.rows)
        except SPARK_ERRORS as error:
            raise PipelineError(f"archiving stopped: {root_cause(error)}") from error


def quarantine(lake: Lake, news: News | None = None) -> int:
    """Copy new entries that do not parse to ``bronze.quarantine``. Returns the number of rows of that table.

    ``news`` are the entries that this run has added to bronze.
    """
    lake.create(QUARANTINE)
    end = bronze_end(lake).rows
    count, searched = lake.memory.get(QUARANTINE.name, _SEARCHED) or (None, 0)
    clean = news is not None and news.first_seq <= searched and news.table["unparsable"].null_count == len(news.table)
    if count is None or not (searched == end or clean):
        newest = lake.value(QUARANTINE.name, "max(seq)")
        since = max(searched, 0 if newest is None else int(newest) + 1)
        bad = lake.read(EVENT_LOG.name).where(F.col("unparsable").isNotNull() & (F.col("seq") >= since))
        if not bad.isEmpty():
            lake.append(bad, QUARANTINE, app=f"{APP}.quarantine", version=0 if newest is None else int(newest) + 1)
        count = int(lake.value(QUARANTINE.name, "count(*)"))
    lake.memory.keep(QUARANTINE.name, _SEARCHED, (count, end))
    return int(count)
