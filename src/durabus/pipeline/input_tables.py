"""The tables that projections read: which table a name means, which of its rows have changed, and its version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.types import StructType

from durabus.errors import ConfigurationError, PipelineError
from durabus.model.pattern import matches
from durabus.pipeline.expectations import OnBreak
from durabus.pipeline.key_tracing import Feed, KeyTrace, trace_key, with_expressions
from durabus.pipeline.lake import Lake, is_url, lake_path, newest_version, read_delta
from durabus.pipeline.news import News
from durabus.pipeline.projections import Projection, is_own_table, of_types
from durabus.pipeline.schema import ATTEMPTS, EVENT_LOG, EVENTS, Table
from durabus.pipeline.session import first_line
from durabus.pipeline.tables import EventTable
from durabus.pipeline.upcasts import upcasted_or_failed

CORE = {table.name: table for table in (EVENT_LOG, EVENTS, ATTEMPTS)}
_FEEDS = {
    EVENT_LOG.name: Feed(seq="seq", fixed=frozenset(EVENT_LOG.columns), since="at", appended=True, tells_new=True),
    EVENTS.name: Feed(
        seq="last_seq",
        fixed=frozenset(("id", "event_id", "bus", "type", "published_at", "payload", "first_seq")),
        since="last_at",
        tells_new=True,
    ),
    ATTEMPTS.name: Feed(
        seq="last_seq",
        fixed=frozenset(("id", "fence", "event_id", "bus", "type", "generation")),
        since="greatest(picked_at, started_at, ended_at)",
    ),
}
_TYPED_SEQ = "durabus_seq"
_CHANGING = {"durabus_status", "durabus_ended_at", _TYPED_SEQ}
"""The columns of a typed table that change while its event lives."""
_ENDED = "ended_at IS NOT NULL"
_REPLACED = "replaced"
_TRACES: dict[tuple[SparkSession, tuple[str, ...]], KeyTrace] = {}
"""What this process has traced, by Spark session, fingerprint and columns of the inputs."""


def in_columns(table: Table) -> StructType:
    """Return the columns of a table as Spark describes them."""
    found = StructType.fromDDL(table.ddl)
    assert isinstance(found, StructType)  # noqa: S101  (a list of columns makes one)
    return found


def in_order(projections: Sequence[Projection]) -> list[Projection]:
    """Return the projections so that each comes after those that it reads.

    Raises ``ConfigurationError`` if two have the same name, if one reads another that is not declared, or if they read
    each other in a circle.
    """
    by_name = {f"gold.{one.name}": one for one in projections}
    if len(by_name) < len(projections):
        names = [one.name for one in projections]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two projections are called {twice}: give one of them another name")
    graph = {name: [table for table in one.inputs if table.startswith("gold.")] for name, one in by_name.items()}
    for name, read in graph.items():
        absent = [table for table in read if table not in by_name]
        if absent:
            raise ConfigurationError(
                f"projection {by_name[name].name}: no declared projection makes {absent[0]}: choose from "
                f"{', '.join(by_name)}"
            )
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        chain = " reads ".join(reversed(error.args[1]))
        raise ConfigurationError(f"projections read each other in a circle: {chain}; take out one input") from error


class InputTables:
    """The tables of a lake as inputs of projections, with the declared projections and typed tables."""

    def __init__(self, lake: Lake, projections: Sequence[Projection] = (), typed: Sequence[EventTable] = ()) -> None:
        self._lake = lake
        self._projections = {f"gold.{one.name}": one for one in projections}
        self._typed = {one.table: one for one in typed}

    def feed(self, name: str) -> Feed | None:
        """Return how changed rows of an input are found; None if only its version says that something has changed.

        An expectation can delete a row of a typed table later, so such a table has no feed.
        """
        typed = self._typed.get(name)
        if typed is None or any(one.action == OnBreak.QUARANTINE for one in typed.expectations):
            return _FEEDS.get(name)
        return Feed(seq=_TYPED_SEQ, fixed=frozenset(self.schema(name).names) - _CHANGING)

    def schema(self, name: str) -> StructType:
        """Return the columns of an input. Those of a projection whose table is not made yet come from its formula."""
        if name in CORE:
            return in_columns(CORE[name])
        made = self._projections.get(name)
        if made is not None and not self._lake.exists(made.table):
            return self.trace(made).schema
        return self._opened(name, None).schema

    def trace(self, projection: Projection) -> KeyTrace:
        """Return how a projection is updated."""
        schemas = {name: self.schema(name) for name in projection.inputs}
        feeds = {name: feed for name in projection.inputs if (feed := self.feed(name)) is not None}
        inputs = (f"{schemas[name].json()} {feeds.get(name)}" for name in projection.inputs)
        known = self._lake.spark, (projection.fingerprint, *inputs)
        if known not in _TRACES:
            _TRACES[known] = trace_key(self._lake.spark, projection, schemas, feeds)
        return _TRACES[known]

    def versions(self, projection: Projection) -> dict[str, int]:
        """Return the version of each input that has no feed, and of typed tables the version that replaced all rows."""
        found = {}
        for name in projection.inputs:
            if self.feed(name) is None:
                found[name] = self._newest_version(name)
            elif name in self._typed:
                found[name] = self._replaced(name)
        return found

    def whole(self, name: str, projection: Projection, versions: Mapping[str, int]) -> DataFrame:
        """Return the rows of an input that a projection uses."""
        if name != EVENTS.name:
            return self._opened(name, versions.get(name) if self.feed(name) is None else None)
        events = self._events(self._lake.read(name), projection)
        return events if projection.live else events.where(_ENDED)

    def changed(self, name: str, projection: Projection, *, seen: int, news: News | None) -> DataFrame:
        """Return the rows of an input with a feed that changed after the entry ``seen``."""
        if news is not None and name == EVENTS.name:
            return self._events(news.events, projection)
        if news is not None and name == EVENT_LOG.name:
            return news.rows
        return self.matching(name, projection, F.col(self._fed(name).seq) > seen)

    def added(self, projection: Projection, news: News) -> tuple[DataFrame, int] | None:
        """Return the new rows of the only input, and the number of its changed rows.

        None if a row that the projection has used before has changed.
        """
        if projection.inputs[0] == EVENT_LOG.name:
            return news.rows, len(news.table)
        used = set(news.older if projection.live else news.ended_before)
        kinds = [(row["id"], row["type"]) for row in news.events_table.select(["id", "type"]).to_pylist()]
        changed = [one for one, kind in kinds if any(matches(pattern, kind) for pattern in projection.types)]
        if not used.isdisjoint(changed):
            return None
        rows = self._chosen(news.events, projection)
        return (rows if projection.live else rows.where(_ENDED)), len(changed)

    def matching(self, name: str, projection: Projection, condition: Column) -> DataFrame:
        """Return the rows of an input that meet a condition. Of events, also those that have not ended."""
        rows = self._opened(name, None).where(condition)
        return self._events(rows, projection) if name == EVENTS.name else rows

    def _fed(self, name: str) -> Feed:
        feed = self.feed(name)
        assert feed is not None  # noqa: S101  (the caller has asked before)
        return feed

    @staticmethod
    def _chosen(events: DataFrame, projection: Projection) -> DataFrame:
        return upcasted_or_failed(events.where(of_types(projection.types)))

    def _events(self, events: DataFrame, projection: Projection) -> DataFrame:
        return with_expressions(self._chosen(events, projection), projection)

    def _place(self, name: str) -> str:
        if is_own_table(name):
            return lake_path(name)
        if name.startswith("gold."):
            return self._lake.location(self._projections[name].table)
        return self._lake.location(name)

    def _opened(self, name: str, version: int | None) -> DataFrame:
        if not is_own_table(name):
            table = self._projections[name].table if name in self._projections else name
            return self._lake.read(table, version=version)
        try:
            return read_delta(self._lake.spark, self._place(name), version=version)
        except AnalysisException as error:
            raise PipelineError(f"input {name}: {first_line(error)}") from error

    def _newest_version(self, name: str) -> int:
        log = Path(self._place(name), "_delta_log")
        if not is_url(self._place(name)) and log.is_dir():
            return max(int(file.stem) for file in log.glob("*.json") if file.stem.isdigit())
        return newest_version(self._lake.spark, self._place(name))

    def _replaced(self, name: str) -> int:
        """Return the newest version of a table that replaced all of its rows; -1 if its history has none."""
        known: int | None = self._lake.memory.get(name, _REPLACED)
        if known is None:
            history = self._lake.history(name)
            known = next((int(one["version"]) for one in history if "REPLACE TABLE" in one["operation"]), -1)
            self._lake.memory.keep(name, _REPLACED, known)
        return known
