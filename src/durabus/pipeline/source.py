"""``spark.read.format("durabus")`` and ``spark.readStream.format("durabus")`` read the log of any store as rows.

Spark finds the source without a register call, through the package ``pyspark_durabus``.

::

    option            default
    url                        the store, such as sqlite:///bus.db
    after             ""       read only entries after this position (a stream: where its first batch begins)
    until             head     batch only: read up to and including this position
    rowsPerPartition  250000   entries that one task reads
    pieces                     batch only, instead of these three: the result of ``pieces_between`` as JSON, for a
                               log that is already cut
    maxRowsPerTrigger          stream only: maximum number of entries in one micro-batch
    payloads          true     false: PUBLISHED entries of live events lack the payload, as they do in the log
    bus, type, action          only entries of this bus, of types under this glob, with one of these actions (a,b)
    since, before              only entries written at or after, and before, this instant (ISO 8601, UTC by default)

The last five drop rows in the reader. ``spark.read.format("durabus").schema("id BIGINT, type STRING")`` reads these
columns only. The source does not use Spark's filter pushdown: Spark 4.2.0 keeps the filters of one query for the next
query on the same DataFrame, which then silently lacks rows. It offers a Python source no way to drop columns by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from durabus.errors import ConfigurationError
from durabus.pipeline.payloads import with_payloads
from durabus.pipeline.read_request import ReadRequest, whole_option
from durabus.pipeline.schema import ARROW, SPARK, record_batch
from durabus.pipeline.store_session import StoreSession
from durabus.store.contract import EventStore
from durabus.store.log import START

ROWS_PER_PARTITION = 250_000
ROWS_PER_PAGE = 10_000
"""Entries that the reader gets from a store in one call. They become one Arrow batch."""
MAX_PARTITIONS = 10_000
ALL = 2**62
OPTIONS = (
    *("url", "after", "until", "rowsPerPartition", "pieces", "maxRowsPerTrigger", "payloads", "bus", "type", "action"),
    *("since", "before"),
)
_OPTIONS = {name.lower() for name in OPTIONS}

Pieces = list[tuple[str, tuple[str, ...], int]]
"""The arguments of each ``Piece``."""


class Piece(InputPartition):
    """The part of the log that one task reads: its begin, the ends of its pages, and the number of rows before it."""

    def __init__(self, after: str, ends: Sequence[str], before: int) -> None:
        self.after = after
        self.ends = ends
        self.before = before


def cut_pieces(log: StoreSession, after: str, until: str, rows: int) -> list[Piece]:
    """Cut the log between two positions into pieces for tasks that run side by side."""
    page, pages = pages_of(rows)
    most = MAX_PARTITIONS * pages
    ends = log.ask(lambda store: store.cut_log(after=after, until=until, rows=page, limit=most + 1))
    if len(ends) > most:
        raise ConfigurationError(f"rowsPerPartition={rows}: makes more than {MAX_PARTITIONS} tasks; raise it")
    return [Piece(*piece) for piece in pieces_between(after, ends, rows)]


PageRows = tuple[list[int], list[tuple[Any, ...]]]
"""Rows of a page, and the number of each in it. A page has more rows than these if some are not wanted."""


def read_pages(
    log: StoreSession, after: str, ends: Sequence[str], wanted: ReadRequest
) -> Iterator[tuple[int, PageRows]]:
    """Yield the number of rows of each page after a position, and the wanted ones. The pages have these ends.

    Each call reads a page up to its own end: a database that returns the first rows of a longer part may sort the whole
    part every time.
    """
    for end in ends:
        while after != end:
            total, found, after = log.ask(partial(_read_page, after=after, until=end, wanted=wanted))
            if not total:
                break  # the rest of the page was trimmed
            yield total, found
        after = end


async def _read_page(store: EventStore, *, after: str, until: str, wanted: ReadRequest) -> tuple[int, PageRows, str]:
    page = await store.read_log_rows(after=after, until=until, limit=ROWS_PER_PAGE)
    rows, numbers = page.rows, list(range(len(page.rows)))
    if not wanted.everything:
        numbers = [n for n, row in enumerate(rows) if wanted.of_event(row)]
        rows = [rows[n] for n in numbers]
    if wanted.payloads:
        rows = await with_payloads(store, rows)  # this must see all entries of an event
    if not wanted.everything:
        kept = [n for n, row in enumerate(rows) if wanted.of_entry(row)]
        rows, numbers = [rows[n] for n in kept], [numbers[n] for n in kept]
    return len(page.rows), (numbers, rows), page.next


def pages_of(rows: int) -> tuple[int, int]:
    """Return the number of entries in a page and of pages in a task, for tasks of at most ``rows`` entries."""
    pages = -(-rows // ROWS_PER_PAGE)
    return rows // pages, pages


def pieces_between(after: str, ends: Sequence[str], rows: int) -> Pieces:
    """Return the pieces for tasks of at most ``rows`` entries, of a log that was cut into pages with these ends."""
    page, pages = pages_of(rows)
    return [(ends[n - 1] if n else after, tuple(ends[n : n + pages]), n * page) for n in range(0, len(ends), pages)]


def read_log_part(
    spark: SparkSession, log: StoreSession, after: str, ends: Sequence[str], rows: int, *, payloads: bool = True
) -> DataFrame:
    """Return the rows of ``format("durabus")`` for the part of the log that was cut into pages with these ends.

    The driver reads a single page itself. Spark would start two Pythons to plan the task and one to run it, which takes
    seconds.
    """
    if len(ends) > 1:
        pieces = msgspec.json.encode(pieces_between(after, ends, rows)).decode()
        reader = spark.read.format("durabus").option("url", log.url).option("payloads", payloads)
        return reader.option("pieces", pieces).load()
    wanted = ReadRequest({"payloads": str(payloads)})
    found = [row for _, (_, rows) in read_pages(log, after, ends, wanted) for row in rows]
    page = spark.createDataFrame(pa.Table.from_batches([record_batch(found, range(len(found)))]), SPARK)
    return page.coalesce(1)  # one small file instead of several


class DurabusDataSource(DataSource):
    """The event log of a durabus store."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        unknown = sorted(name for name in options if name.lower() not in _OPTIONS)
        if unknown:
            if unknown == ["path"]:
                raise ConfigurationError(
                    f"load({options['path']!r}): the durabus source reads a store, not a path: name the store with "
                    'option("url", "sqlite:///bus.db") and call load() without a path'
                )
            raise ConfigurationError(
                f"the durabus source has no option {unknown[0]!r}: choose from {', '.join(OPTIONS)}"
            )
        if not options.get("url"):
            raise ConfigurationError('the durabus source needs option("url", …), as sqlite:///bus.db')

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "durabus"

    def schema(self) -> str:
        """Return the columns of the log."""
        return SPARK

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of ``spark.read``."""
        return LogBatchReader(self.options, _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return the reader of ``spark.readStream``."""
        return LogStreamReader(self.options, _columns_of(schema))


def _columns_of(schema: StructType) -> list[str]:
    """Return the columns that the user asks for with ``schema``; by default all."""
    known = {field.name: field.dataType for field in from_arrow_schema(ARROW)}
    for field in schema:
        if known.get(field.name) != field.dataType:
            raise ConfigurationError(
                f"schema(…): the log has no column {field.name} {field.dataType.simpleString().upper()}: "
                f"choose from {SPARK}"
            )
    return schema.names


class LogBatchReader(DataSourceReader):
    """Reads the log once, in parts that tasks read in parallel."""

    def __init__(self, options: MutableMapping[str, str], columns: Sequence[str]) -> None:
        self._url = options["url"]
        self._after = options.get("after", START)
        self._until = options.get("until")
        self._pieces = msgspec.json.decode(options["pieces"], type=Pieces) if "pieces" in options else None
        self._rows = whole_option(options, "rowsPerPartition", ROWS_PER_PARTITION)
        self._wanted = ReadRequest(options, columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the log when Spark plans the query. Entries that are committed later are not part of this read."""
        if self._pieces is not None:
            return [Piece(*piece) for piece in self._pieces]
        with StoreSession(self._url) as log:
            until = log.ask(lambda store: store.log_head()) if self._until is None else self._until
            return cut_pieces(log, self._after, until, self._rows) or [Piece(START, (), 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the part of one task."""
        return read_piece(self._url, partition, self._wanted)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log as it grows. The offset is a log position, so a repeated batch has the same rows."""

    def __init__(self, options: MutableMapping[str, str], columns: Sequence[str]) -> None:
        self._url = options["url"]
        self._after = options.get("after", START)
        self._rows = whole_option(options, "rowsPerPartition", ROWS_PER_PARTITION)
        self._limit = whole_option(options, "maxRowsPerTrigger", 0)
        self._wanted = ReadRequest(options, columns)
        self._target: str | None = None
        self._log = StoreSession(self._url)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  (Spark's name)
        """Return the position at which a new query begins."""
        return {"position": self._after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return the limit that ``maxRowsPerTrigger`` sets."""
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Fix the end of a run with ``availableNow``. Entries that are committed later belong to the next run."""
        self._target = self._head()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802  (Spark's name)
        """Return the end of the next batch, which has at most ``limit`` entries."""
        until = self._head() if self._target is None else self._target
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else ALL
        after = start["position"]
        ends = self._log.ask(lambda store: store.cut_log(after=after, until=until, rows=rows, limit=1))
        return {"position": ends[0]} if ends else start

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802  (Spark's name)
        """Return the current end of the log. Spark shows its distance from the end of the batch as the lag."""
        return {"position": self._head()}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Cut a batch for its tasks. The same offsets give the same parts."""
        return cut_pieces(self._log, start["position"], end["position"], self._rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the part of one task."""
        return read_piece(self._url, partition, self._wanted)

    def stop(self) -> None:
        """Close the store: the query has ended."""
        self._log.close()

    def _head(self) -> str:
        return self._log.ask(lambda store: store.log_head())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": StoreSession(self._url)}


def read_piece(url: str, partition: InputPartition, wanted: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of one partition as Arrow. The task opens its own store."""
    assert isinstance(partition, Piece)  # noqa: S101  (Spark gives back what partitions() made)
    ordinal = partition.before
    with StoreSession(url) as log:
        for total, (numbers, rows) in read_pages(log, partition.after, partition.ends, wanted):
            if rows:
                yield record_batch(rows, [ordinal + n for n in numbers], wanted.columns)
            ordinal += total
