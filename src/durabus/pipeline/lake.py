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
"""The error conditions of Spark and Delta for an absent table. All others, such as missing permission, are errors."""
_MADE = "__made"
_LOCK_FILE = "_lock"
_LOOK_EVERY = 0.1
"""Seconds between two tries. A blocking lock call would have no timeout."""
LONGEST_TRAIL = 10_000
_VERSIONED = re.compile(r"(.+)_v(\d+)")


def version_of(name: str) -> int:
    """Return the version in a projection's table name; 0 for other tables."""
    found = _VERSIONED.fullmatch(name)
    return int(found[2]) if found else 0


def plain_name(name: str) -> str:
    """Return a table's name without a version."""
    found = _VERSIONED.fullmatch(name)
    return found[1] if found else name


class Lake:
    """The tables under ``path``. ``schema.table`` is kept in ``path/schema/table``."""

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        self.spark = spark
        self.path = str(path).rstrip("/") if "://" in str(path) else str(Path(path).absolute())

    def location(self, name: str) -> str:
        """Return the path of a table."""
        return f"{self.path}/{name.replace('.', '/')}"

    def exists(self, name: str) -> bool:
        """Return whether a table has a commit. A run that is killed before its first commit leaves an empty folder."""
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
        """Read a table at its newest version or at a given one."""
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
        """Create an empty table, unless it exists."""
        if self.exists(table.name):
            return
        partitioned = f"PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in table.properties.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name(table.name)} ({table.ddl}) USING DELTA {partitioned} "
            f"TBLPROPERTIES ({properties})"
        )

    def append(self, rows: DataFrame, table: Table, *, app: str = "", version: int = 0) -> None:
        """Add rows in one commit. Creates the table if it is absent, and adds columns that it lacks.

        With ``app``, Delta skips the commit if this app has written this version before.
        """
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        if not self.exists(table.name):
            writer = writer.options(**table.properties).partitionBy(*table.partitioned_by)
        if app:
            writer = writer.option("txnAppId", app).option("txnVersion", version)
        writer.save(self.location(table.name))

    def overwrite(self, rows: DataFrame, name: str, properties: Mapping[str, str] | None = None) -> None:
        """Replace all rows and columns in one commit. Running readers keep their version; older versions stay.

        ``properties`` apply if this creates the table.
        """
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if properties and not self.exists(name):
            writer = writer.options(**properties)
        writer.save(self.location(name))

    def merge(self, rows: DataFrame, name: str, key: Sequence[str], *, of: DataFrame | None = None) -> None:
        """Replace rows with the same key and insert the others. With ``of``, delete its keys that ``rows`` lacks."""
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
        """Return one aggregate over a table, such as ``max(seq)``; None if the table is absent or empty."""
        if not self.exists(name):
            return None
        return self.read(name).agg(F.expr(expression)).head()[0]  # type: ignore[index]

    def tables(self) -> list[str]:
        """Return the names of the tables in the lake."""
        found = {name for schema in SCHEMAS for name in self._folders(f"{self.path}/{schema}") if self.exists(name)}
        return sorted(found)

    def sql(self, query: str) -> DataFrame:
        """Run a SELECT over the tables by their names. A projection also has a name without its version."""
        tables = self.tables()
        newest = {plain_name(name): name for name in sorted(tables, key=version_of)}
        names = newest | {name: name for name in tables}
        # Registering a name takes longer than most queries, so only names that occur in the query are registered.
        asked = re.sub(r"\s*\.\s*", ".", query.replace("`", "").lower())
        self._register({name: table for name, table in names.items() if name in asked} or names)
        return self.spark.sql(query)

    def _register(self, names: Mapping[str, str]) -> None:
        for schema in SCHEMAS:
            # The database has no folder in the lake and is never dropped: Spark would delete the folder with it.
            self.spark.sql(f"CREATE DATABASE IF NOT EXISTS `{schema}`")
            for known in self.spark.sql(f"SHOW TABLES IN `{schema}`").collect():
                if not known["isTemporary"]:
                    # This removes only the name: the table is external.
                    self.spark.sql(f"DROP TABLE `{schema}`.`{known['tableName']}`")
        for name, table in names.items():
            self.spark.sql(f"CREATE TABLE {name} USING DELTA LOCATION {_quoted(self.location(table))}")

    def compact(self, name: str) -> None:
        """Merge small files into large ones. Readers and streams are not affected."""
        self.spark.sql(f"OPTIMIZE {self._name(name)}")

    def compact_by_itself(self) -> None:
        """Let each writer of this session merge the small files of a table once there are a few dozen.

        For runs that repeat. The first write of a session to a table merges them in any case.
        """
        self.spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")

    def vacuum(self, name: str, *, hours: float) -> None:
        """Delete files that no version of the last ``hours`` needs. Older versions cannot be read after that."""
        self.spark.sql(f"VACUUM {self._name(name)} RETAIN {hours} HOURS")

    def detail(self, name: str) -> Row:
        """Return Delta's description of a table: files, bytes and more."""
        row = self.spark.sql(f"DESCRIBE DETAIL {self._name(name)}").first()
        assert row is not None  # noqa: S101  (it describes one table)
        return row

    def version(self, name: str) -> int:
        """Return the newest version of a table."""
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


class QueryResult(msgspec.Struct, frozen=True):
    """Named columns and rows of values."""

    columns: list[str]
    rows: list[dict[str, Any]]


def ask_sql(lake: Lake, query: str, *, limit: int) -> QueryResult:
    """Return the result of a SELECT over the tables of the lake, at most ``limit`` rows."""
    try:
        return first_rows(lake.sql(query), limit)
    except SPARK_ERRORS as error:
        raise PipelineError(f"the query failed: {first_line(error)}") from error


def first_rows(frame: DataFrame, limit: int) -> QueryResult:
    """Return the first rows of a DataFrame, with instants in UTC."""
    instants = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    rows = [row.asDict(recursive=True) for row in frame.limit(limit).collect()]
    for row in rows:
        row |= {name: in_utc(row[name]) for name in instants if row[name] is not None}
    return QueryResult(frame.columns, rows)


def in_utc(instant: datetime) -> datetime:
    """Return an instant of a row in UTC. PySpark returns it in the local time zone, without the zone."""
    return instant.astimezone(UTC).replace(tzinfo=None)


def archived_trail(lake: Lake, ref: EventRef) -> QueryResult:
    """Return every archived entry of an event, oldest first; no rows if the lake does not have the event."""
    key = "id" if isinstance(ref, int) else "event_id"
    return first_rows(
        lake.read(EVENT_LOG.name).where(F.col(key) == ref).orderBy("seq").select(*EVENT_LOG_COLUMNS), LONGEST_TRAIL
    )


@contextmanager
def lake_lock(path: str, *, wait: float = 0.0) -> Iterator[None]:
    """Lock the lake in this folder. The lock ends with the process, even if it is killed.

    Raises ``PipelineError`` if another process holds it for longer than ``wait`` seconds.

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
