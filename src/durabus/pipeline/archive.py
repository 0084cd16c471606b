"""From the log of a store to ``bronze.event_log``: every entry once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import PipelineError
from durabus.model.statuses import Action, EventStatus
from durabus.pipeline.asking import ask_store
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import SPARK_ERRORS, absolute_url, root_cause
from durabus.pipeline.tables import EVENT_LOG, QUARANTINE
from durabus.store.log import START

ROWS_PER_BATCH = 2_000_000
"""Few large batches: a commit costs about a second, whatever its size."""

APP = "durabus.archive"

OnBatch = Callable[[int], None]
"""Called after each batch with the number of rows that bronze has now."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What a run added, and where bronze ends now."""

    rows: int
    total: int


def event_log(log: DataFrame, first_seq: int) -> DataFrame:
    """``bronze.event_log`` from rows of the durabus source, the first of which gets ``first_seq``."""
    return log.select(
        (F.lit(first_seq) + F.col("ordinal")).alias("seq"),
        F.to_date("at").alias("day"),
        *(column for column in EVENT_LOG.columns if column not in ("seq", "day", "reason")),
        unparsable().alias("reason"),
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

    def __init__(self, lake: Lake, url: str, *, rows_per_batch: int = ROWS_PER_BATCH) -> None:
        self._lake = lake
        self._url = absolute_url(url)
        self._rows_per_batch = rows_per_batch

    def run(self, on_batch: OnBatch = lambda _: None, *, since: tuple[int, str] | None = None) -> Archived:
        """Archive what is committed now, batch by batch, then return. ``since``: what ``reached`` has just answered."""
        head = ask_store(self._url, lambda store: store.log_head())
        before, position = self.reached() if since is None else since
        total = before
        while (until := self._end_of_batch(position, head)) is not None:
            self._write(position, until, first=total)
            reached, position = self.reached()
            if reached <= total:
                raise PipelineError(
                    f"{EVENT_LOG.name} did not grow beyond row {total}: it was restored to an older version or another "
                    "run writes it; archive into a new lake"
                )
            total = reached
            on_batch(total)
        self._lake.create(EVENT_LOG)  # for a log that is empty
        return Archived(rows=total - before, total=total)

    def reached(self) -> tuple[int, str]:
        """How many rows bronze has, which is the next ``seq``, and the position of the newest (``START``: none).

        Both are cheap however many rows there are: Delta knows the largest ``seq``, and in which file it is.
        """
        newest = self._lake.value(EVENT_LOG.name, "max(seq)")
        if newest is None:
            return 0, START
        row = self._lake.read(EVENT_LOG.name).where(F.col("seq") == newest).select("position").head()
        return int(newest) + 1, row["position"]  # type: ignore[index]  # one row has the largest

    def _end_of_batch(self, after: str, head: str) -> str | None:
        """Where a batch after this position ends; None if there is nothing up to ``head``."""
        rows = self._rows_per_batch
        ends = ask_store(self._url, lambda store: store.cut_log(after=after, until=head, rows=rows, limit=1))
        return ends[0] if ends else None

    def _write(self, after: str, until: str, *, first: int) -> None:
        log = self._lake.spark.read.format("durabus").option("url", self._url)
        rows = log.option("after", after).option("until", until).load()
        try:
            self._lake.append(event_log(rows, first), EVENT_LOG, app=APP, version=first)
        except SPARK_ERRORS as error:
            raise PipelineError(f"archiving stopped: {root_cause(error)}") from error


def quarantine(lake: Lake) -> int:
    """Copy what does not parse, and is not there yet, to ``bronze.quarantine``. Answers how many rows are there."""
    lake.create(QUARANTINE)
    newest = lake.value(QUARANTINE.name, "max(seq)")
    bad = lake.read(EVENT_LOG.name).where(
        F.col("reason").isNotNull() & (F.col("seq") > (-1 if newest is None else newest))
    )
    if not bad.isEmpty():
        lake.append(bad, QUARANTINE)
    return int(lake.value(QUARANTINE.name, "count(*)"))
