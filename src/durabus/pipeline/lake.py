"""Delta tables in one folder or bucket: the only place that writes them, queries over them, and the lock of a run."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.types import TimestampType

from durabus.errors import PipelineError
from durabus.model.claim import default_worker_id
from durabus.pipeline.schema import EVENT_LOG, EVENT_LOG_COLUMNS, Table
from durabus.pipeline.session import SPARK_ERRORS, first_line
from durabus.store.events import EventRef

SCHEMAS = ("bronze", "silver", "gold", "ops")
_ABSENT = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")
"""How Spark and Delta say that there is nothing. Whatever else they say, as that it may not be read, is an error."""
_MADE = "__made"
_LOCK_FILE = "_lock"
_LOOK_EVERY = 0.1
"""Seconds. A lock can be waited for, but then nothing can say for how long."""
LONGEST_TRAIL = 10_000
_VERSIONED = re.compile(r"(.+)_v(\d+)")


def version_of(name: str) -> int:
    """The version in a projection's table name; 0 for other tables."""
    found = _VERSIONED.fullmatch(name)
    return int(found[2]) if found else 0


def plain_name(name: str) -> str:
    """A table's name without a version."""
    found = _VERSIONED.fullmatch(name)
    return found[1] if found else name


class Lake:
    """The tables under ``path``. ``schema.table`` is kept in ``path/schema/table``."""

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        self.spark = spark
        self.path = str(path).rstrip("/") if "://" in str(path) else str(Path(path).absolute())

    def location(self, name: str) -> str:
        """Where a table is."""
        return f"{self.path}/{name.replace('.', '/')}"

    def exists(self, name: str) -> bool:
        """Whether a table is there: one commit at least, because who was killed before it leaves an empty folder."""
        if "://" not in self.path:
            log = Path(self.location(name), "_delta_log")
            return log.is_dir() and any(file.suffix == ".json" for file in log.iterdir())
        try:
            self.spark.read.format("delta").load(self.location(name)).schema  # noqa: B018  (asks the table)
        except AnalysisException as error:
            if error.getCondition() not in _ABSENT:
                raise
            return False
        return True

    def read(self, name: str, *, version: int | None = None) -> DataFrame:
        """A table as it is now, or as it was at a version."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        try:
            return reader.load(self.location(name))
        except AnalysisException as error:
            if not self.exists(name):
                raise PipelineError(
                    f"the lake {self.path} has no table {name}: `durabus pipeline run` makes it"
                ) from error
            raise PipelineError(f"{name}: {first_line(error)}") from error

    def create(self, table: Table) -> None:
        """Make an empty table, unless it is there."""
        if self.exists(table.name):
            return
        partitioned = f"PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in table.properties.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name(table.name)} ({table.ddl}) USING DELTA {partitioned} "
            f"TBLPROPERTIES ({properties})"
        )

    def append(self, rows: DataFrame, table: Table, *, app: str = "", version: int = 0) -> None:
        """Add rows in one commit, which makes the table if it is absent. Columns that it lacks are added to it.

        With ``app``, a version that this app wrote before is skipped.
        """
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        if not self.exists(table.name):
            writer = writer.options(**table.properties).partitionBy(*table.partitioned_by)
        if app:
            writer = writer.option("txnAppId", app).option("txnVersion", version)
        writer.save(self.location(table.name))

    def overwrite(self, rows: DataFrame, name: str, properties: Mapping[str, str] | None = None) -> None:
        """Replace all rows, and the columns, in one commit. Readers keep what they began with; older versions stay.

        ``properties`` are those of a table that is made by it.
        """
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if properties and not self.exists(name):
            writer = writer.options(**properties)
        writer.save(self.location(name))

    def merge(self, rows: DataFrame, name: str, key: Sequence[str], *, of: DataFrame | None = None) -> None:
        """Put rows in place of those with the same key. With ``of``, those of its keys that no row has are deleted."""
        on = " AND ".join(f"t.`{column}` <=> s.`{column}`" for column in key)
        updates = ", ".join(f"t.`{column}` = s.`{column}`" for column in rows.columns)
        names, values = (", ".join(f"{p}`{column}`" for column in rows.columns) for p in ("", "s."))
        delete, insert = "", "WHEN NOT MATCHED"
        if of is not None:
            rows = of.join(rows.withColumn(_MADE, F.lit(True)), list(key), "left")
            delete, insert = f"WHEN MATCHED AND s.{_MADE} IS NULL THEN DELETE", f"WHEN NOT MATCHED AND s.{_MADE}"
        with self._view(rows) as view:
            self.spark.sql(
                f"MERGE INTO {self._name(name)} t USING {view} s ON {on} {delete} "  # noqa: S608  (our own names)
                f"WHEN MATCHED THEN UPDATE SET {updates} {insert} THEN INSERT ({names}) VALUES ({values})"
            )

    def value(self, name: str, expression: str) -> Any:
        """One aggregate over a table, as ``max(seq)``; None if the table is absent or empty."""
        if not self.exists(name):
            return None
        return self.read(name).agg(F.expr(expression)).head()[0]  # type: ignore[index]

    def tables(self) -> list[str]:
        """The names of the tables that are there."""
        found = {name for schema in SCHEMAS for name in self._folders(f"{self.path}/{schema}") if self.exists(name)}
        return sorted(found)

    def sql(self, query: str) -> DataFrame:
        """A SELECT over the tables by their names; a projection is also known by its name without the version."""
        tables = self.tables()
        newest = {plain_name(name): name for name in sorted(tables, key=version_of)}
        names = newest | {name: name for name in tables}
        # To make a name known takes longer than most questions: so only those that are asked about, if it is clear.
        asked = re.sub(r"\s*\.\s*", ".", query.replace("`", "").lower())
        self._register({name: table for name, table in names.items() if name in asked} or names)
        return self.spark.sql(query)

    def _register(self, names: Mapping[str, str]) -> None:
        for schema in SCHEMAS:
            # Not in the lake's own folder, and never dropped: Spark would delete the folder with it.
            self.spark.sql(f"CREATE DATABASE IF NOT EXISTS `{schema}`")
            for known in self.spark.sql(f"SHOW TABLES IN `{schema}`").collect():
                if not known["isTemporary"]:
                    self.spark.sql(f"DROP TABLE `{schema}`.`{known['tableName']}`")  # the name alone: it is external
        for name, table in names.items():
            self.spark.sql(f"CREATE TABLE {name} USING DELTA LOCATION {_quoted(self.location(table))}")

    def compact(self, name: str) -> None:
        """Make few large files of many small ones. Readers and streams do not notice."""
        self.spark.sql(f"OPTIMIZE {self._name(name)}")

    def compact_by_itself(self) -> None:
        """From now on, in this session: after some dozen small files of a table, its writer makes one of them.

        For runs that follow one another. A session's first write to a table does it in any case, however few there are.
        """
        self.spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")

    def vacuum(self, name: str, *, hours: float) -> None:
        """Delete files that no version of the last ``hours`` needs: time travel reaches no further back then."""
        self.spark.sql(f"VACUUM {self._name(name)} RETAIN {hours} HOURS")

    def detail(self, name: str) -> Row:
        """What Delta says about a table: files, bytes and more."""
        row = self.spark.sql(f"DESCRIBE DETAIL {self._name(name)}").first()
        assert row is not None  # noqa: S101  (it describes one table)
        return row

    def version(self, name: str) -> int:
        """The newest version of a table."""
        row = self.spark.sql(f"DESCRIBE HISTORY {self._name(name)} LIMIT 1").first()
        return int(row["version"])  # type: ignore[index]

    def _folders(self, place: str) -> list[str]:
        schema = place.rpartition("/")[2]
        if "://" not in self.path:
            return [f"{schema}.{child.name}" for child in Path(place).glob("*") if child.is_dir()]
        try:
            files = (
                self.spark.read.format("binaryFile")
                .option("pathGlobFilter", "*.json")
                .option("recursiveFileLookup", "true")
                .load(f"{place}/*/_delta_log")
                .select("path")
                .collect()
            )
        except AnalysisException as error:
            if error.getCondition() not in _ABSENT:
                raise
            return []
        return sorted({f"{schema}.{row['path'].split('/_delta_log/')[0].rpartition('/')[2]}" for row in files})

    def _name(self, name: str) -> str:
        return f"delta.`{self.location(name).replace('`', '``')}`"

    @contextmanager
    def _view(self, rows: DataFrame) -> Iterator[str]:
        name = f"merging_{id(rows)}"
        rows.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self.spark.catalog.dropTempView(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class Answer(msgspec.Struct, frozen=True):
    """Named columns and rows of values."""

    columns: list[str]
    rows: list[dict[str, Any]]


def ask_sql(lake: Lake, query: str, *, limit: int) -> Answer:
    """What a SELECT over the tables of the lake answers, at most ``limit`` rows of it."""
    try:
        return answer(lake.sql(query), limit)
    except SPARK_ERRORS as error:
        raise PipelineError(f"the query failed: {first_line(error)}") from error


def answer(frame: DataFrame, limit: int) -> Answer:
    """The first rows of a DataFrame, their instants in UTC."""
    instants = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    rows = [row.asDict(recursive=True) for row in frame.limit(limit).collect()]
    for row in rows:
        row |= {name: in_utc(row[name]) for name in instants if row[name] is not None}
    return Answer(frame.columns, rows)


def in_utc(instant: datetime) -> datetime:
    """An instant of a row: PySpark gives it by this host's calendar, and does not say so."""
    return instant.astimezone(UTC).replace(tzinfo=None)


def archived_trail(lake: Lake, ref: EventRef) -> Answer:
    """Every archived entry of an event, oldest first; no rows if the lake does not know it."""
    key = "id" if isinstance(ref, int) else "event_id"
    return answer(
        lake.read(EVENT_LOG.name).where(F.col(key) == ref).orderBy("seq").select(*EVENT_LOG_COLUMNS), LONGEST_TRAIL
    )


@contextmanager
def lake_lock(path: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lake in this folder; the lock ends with the process, however it ends.

    Raises ``PipelineError`` if another process has it for longer than ``wait`` seconds.

    A lake in a bucket has no such lock. Delta refuses the second of two writers there.
    """
    if "://" in path:
        yield
        return
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
        file = (place / _LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"the lake {path} cannot be written: {error.strerror or error}") from error
    with file:
        if not _taken(file, wait):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PipelineError(f"the lake {path} is locked by another run ({holder}): wait for it, or stop it")
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), default_worker_id().encode())
        except OSError as error:
            raise PipelineError(f"the lake {path} cannot be written: {error.strerror or error}") from error
        yield


def _taken(file: TextIO, wait: float) -> bool:
    until = time.monotonic() + wait  # clock: how long this process waits
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:  # clock: how long this process waits
                return False
            time.sleep(_LOOK_EVERY)
        else:
            return True
