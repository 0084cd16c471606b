"""The entries that a run has just added to bronze. If there are few, all steps of the run share one read of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import TERMINAL, Action
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import EVENT_LOG
from durabus.pipeline.silver import attempts, events

FEW_ENTRIES = 20_000
"""Maximum number of new entries that the driver keeps in memory. More are read from the table by each step."""
_MOST_RANGES = 16


class News:
    """The entries of bronze from ``first_seq`` on, in the driver's memory, with all earlier entries of their events.

    A query on these rows needs no task that opens a file, so it takes a fraction of a second.
    """

    def __init__(self, lake: Lake, first_seq: int, end: int, table: pa.Table) -> None:
        """``end`` is the ``seq`` after the newest entry."""
        self._lake = lake
        self.first_seq = first_seq
        self.end = end
        self.table = table
        """The new entries themselves."""

    @cached_property
    def rows(self) -> DataFrame:
        """The new entries."""
        return self._lake.spark.createDataFrame(self.table)

    @cached_property
    def ids(self) -> list[int]:
        """The ids of the events that have new entries."""
        return _distinct(self.table["id"])

    @cached_property
    def within(self) -> str:
        """A condition on ``t.id`` that all these events meet, and few others."""
        return in_ranges("t.id", self.ids)

    @cached_property
    def older(self) -> list[int]:
        """The ids of those events that have earlier entries too: all that are not published by a new entry."""
        actions = self.table["action"].to_pylist()
        begun = {one for one, action in zip(self.table["id"].to_pylist(), actions, strict=True) if action == _FIRST}
        return [one for one in self.ids if one not in begun]

    @cached_property
    def entries(self) -> pa.Table:
        """All entries of the events that have new entries, old ones too."""
        older = self.older
        if not older:
            return self.table  # an event has no entry before the one that publishes it
        log = self._lake.read(EVENT_LOG.name).where(F.col("seq") < self.first_seq)
        old = log.where(in_ranges("id", older)).join(
            F.broadcast(self._lake.spark.createDataFrame(pa.table({"id": pa.array(older, pa.int64())}))),
            "id",
            "left_semi",
        )
        return pa.concat_tables([old.select(*EVENT_LOG.columns).toArrow(), self.table.select(EVENT_LOG.columns)])

    @cached_property
    def histories(self) -> DataFrame:
        """The rows of ``entries``."""
        return self._lake.spark.createDataFrame(self.entries)

    @cached_property
    def events_table(self) -> pa.Table:
        """The new rows of ``silver.events``, in the driver's memory."""
        return events(self.histories).toArrow()

    @cached_property
    def events(self) -> DataFrame:
        """The new rows of ``silver.events``."""
        return self._lake.spark.createDataFrame(self.events_table)

    @cached_property
    def attempts_table(self) -> pa.Table:
        """The new rows of ``silver.attempts``, in the driver's memory."""
        return attempts(self.histories).toArrow()

    @cached_property
    def ended_before(self) -> list[int]:
        """The ids of those events that had ended before the new entries."""
        newest: dict[int, tuple[int, str]] = {}
        for row in self.entries.select(["id", "seq", "status"]).to_pylist() if self.older else ():
            if row["seq"] < self.first_seq:
                entry = row["seq"], row["status"]
                newest[row["id"]] = max(entry, newest.get(row["id"], entry))
        return [one for one, (_, status) in newest.items() if status in TERMINAL]


_FIRST = Action.PUBLISHED.value


def read_news(lake: Lake, first_seq: int, end: int, entries: pa.Table | None) -> News | None:
    """Return the entries of bronze from ``first_seq`` on, if they are few; None if there are none or too many.

    ``entries`` are these rows, if they were read already.
    """
    if not 0 < end - first_seq <= FEW_ENTRIES:
        return None
    if entries is None:
        log = lake.read(EVENT_LOG.name).where((F.col("seq") >= first_seq) & (F.col("seq") < end))
        entries = log.toArrow()
    return News(lake, first_seq, end, entries)


def in_ranges(column: str, ids: Sequence[int]) -> str:
    """Return a SQL condition that all these sorted ids meet: a few ranges, so that Delta can skip files by it."""
    if not ids:
        return "false"
    gaps = sorted(range(1, len(ids)), key=lambda n: ids[n - 1] - ids[n])[: _MOST_RANGES - 1]
    cuts = [0, *sorted(n for n in gaps if ids[n] - ids[n - 1] > 1), len(ids)]
    ranges = [(ids[begin], ids[end - 1]) for begin, end in pairwise(cuts)]
    return " OR ".join(f"{column} BETWEEN {low} AND {high}" for low, high in ranges)


def _distinct(ids: pa.ChunkedArray) -> list[int]:
    return sorted(one for one in ids.unique().to_pylist() if one is not None)
