"""Delta tables in one folder or bucket: the only place that writes them, and queries over them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.types import TimestampType

from durabus.errors import PipelineError
from durabus.pipeline.schema import EVENT_LOG, EVENT_LOG_COLUMNS, Table
from durabus.pipeline.session import SPARK_ERRORS, first_line
from durabus.store.events import EventRef

SCHEMAS = ("bronze", "silver", "gold", "ops")
_ABSENT = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")
"""The error conditions of Spark and Delta for an absent table. All others, such as missing permission, are errors."""
_MADE = "__made"
LONGEST_TRAIL = 10_000
_WORDS = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/ |
    (?P<name> (?: `(?:[^`]|``)*` | \w+ ) (?: \s*\.\s* (?: `(?:[^`]|``)*` | \w+ ) )+ )""",
    re.VERBOSE | re.DOTALL,
)
"""Texts and comments, which ``Lake.sql`` leaves alone, and names of several parts."""
_COMMIT = re.compile(r"\d{20}\.json")
ID = "id"
"""What ``TableMemory`` calls the id that Delta gave a table. An append does not change it."""
CommitFile = tuple[str, int, int]
"""The file of a commit: its name, its inode and when it was written."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_VERSIONED = re.compile(r"(gold\..+)_v(\d+)")


def version_of(name: str) -> int:
    """Return the version in a projection's table name; 0 for other tables."""
    found = _VERSIONED.fullmatch(name)
    return int(found[2]) if found else 0


def plain_name(name: str) -> str:
    """Return a table's name without a version."""
    found = _VERSIONED.fullmatch(name)
    return found[1] if found else name


def is_url(path: str) -> bool:
    """Return whether a lake is named by a URL, such as ``s3a://bucket/lake`` or ``dbfs:/lake``, not by a folder."""
    return _URL.match(path) is not None


def lake_path(path: str | Path) -> str:
    """Return the path of a lake as Spark's workers need it: a URL as it is, a folder in full."""
    text = str(path)
    return text.rstrip("/") if is_url(text) else str(Path(text).expanduser().absolute())


class TableMemory:
    """What this process knows of tables. It holds until the next commit of a table, in any process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._values: dict[tuple[str, str], tuple[CommitFile, Any]] = {}

    def keep(self, name: str, what: str, value: Any) -> None:
        """Keep a value that is true of a table until its next commit."""
        commit = self.newest_commit(name)
        if commit is not None:
            self._values[name, what] = commit, value

    def get(self, name: str, what: str) -> Any:
        """Return a value that was kept, or None if the table has changed since."""
        commit, value = self._values.get((name, what), (None, None))
        return value if commit is not None and commit == self.newest_commit(name) else None

    def newest_commit(self, name: str) -> CommitFile | None:
        """Return what identifies the newest commit of a table; None if it is absent or in a bucket.

        A look into the folder costs nothing. In a bucket every question takes about as long as reading the table.
        """
        log = Path(location_in(self._path, name), "_delta_log")
        if is_url(self._path) or not log.is_dir():
            return None
        newest = max((file.name for file in os.scandir(log) if _COMMIT.fullmatch(file.name)), default=None)
        if newest is None:
            return None
        found = (log / newest).stat()
        return newest, found.st_ino, found.st_mtime_ns


def location_in(path: str, name: str) -> str:
    """Return the path of a table in the lake with this path."""
    return f"{path}/{name.replace('.', '/')}"


class Lake:
    """The tables under ``path``. ``schema.table`` is kept in ``path/schema/table``."""

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        self.spark = spark
        self.path = lake_path(path)
        self._registered: dict[str, str] = {}
        self.memory = TableMemory(self.path)

    def location(self, name: str) -> str:
        """Return the path of a table."""
        return location_in(self.path, name)

    def exists(self, name: str) -> bool:
        """Return whether a table has a commit. A run that is killed before its first commit leaves an empty folder."""
        if not is_url(self.path):
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
        try:
            return read_delta(self.spark, self.location(name), version=version)
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
            f"CREATE TABLE IF NOT EXISTS {_delta(self.location(table.name))} ({table.ddl}) USING DELTA {partitioned} "
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
        known = self.memory.get(table.name, ID)
        writer.save(self.location(table.name))
        if known is not None:
            self.memory.keep(table.name, ID, known)

    def overwrite(self, rows: DataFrame, name: str, properties: Mapping[str, str] | None = None) -> None:
        """Replace all rows, columns and properties in one commit. Running readers keep their version of the table."""
        # The writer resolves names once more. In the rows of a SELECT, they are those of views that are gone by now.
        writer = rows.select("*").writeTo(_delta(self.location(name))).using("delta")
        for key, value in (properties or {}).items():
            writer = writer.tableProperty(key, value)
        writer.createOrReplace()

    def merge(
        self, rows: DataFrame, name: str, key: Sequence[str], *, of: DataFrame | None = None, within: str = ""
    ) -> None:
        """Replace rows with the same key and insert the others. With ``of``, delete its keys that ``rows`` lacks.

        ``within`` is a condition that all rows with these keys meet in the table. Delta then skips the other files.
        """
        on = " AND ".join(f"t.`{column}` <=> s.`{column}`" for column in key)
        on += f" AND ({within})" if within else ""
        updates = ", ".join(f"t.`{column}` = s.`{column}`" for column in rows.columns)
        names, values = (", ".join(f"{p}`{column}`" for column in rows.columns) for p in ("", "s."))
        delete, insert = "", "WHEN NOT MATCHED"
        if of is not None:
            rows = of.join(rows.withColumn(_MADE, F.lit(True)), list(key), "left")
            delete, insert = f"WHEN MATCHED AND s.{_MADE} IS NULL THEN DELETE", f"WHEN NOT MATCHED AND s.{_MADE}"
        with _view(rows) as view:
            self.spark.sql(
                f"MERGE INTO {_delta(self.location(name))} t USING {view} s ON {on} {delete} "  # noqa: S608  (our own names)
                f"WHEN MATCHED THEN UPDATE SET {updates} {insert} THEN INSERT ({names}) VALUES ({values})"
            )

    def value(self, name: str, expression: str) -> Any:
        """Return one aggregate over a table, such as ``max(seq)``; None if the table is absent or empty."""
        if not self.exists(name):
            return None
        return self.read(name).agg(F.expr(expression)).head()[0]  # type: ignore[index]

    def tables(self) -> list[str]:
        """Return the names of the tables in the lake."""
        found = {name for schema in SCHEMAS for name in _folders(self, f"{self.path}/{schema}") if self.exists(name)}
        return sorted(found)

    def sql(self, query: str) -> DataFrame:
        """Run a query over the tables by their names. A projection also has a name without its version.

        Raises ``PipelineError`` for everything that is not a query, because a lake is read-only here. The names live in
        schemas of durabus's own, so a schema ``silver`` or ``gold`` of the session stays as it is. A table that the
        lake lacks is looked up in the session.
        """
        tables = self.tables()
        newest = {plain_name(name): name for name in sorted(tables, key=version_of)}
        asked, used = _with_own_schemas(query, newest | {name: name for name in tables}, self.path)
        # Registering a name takes longer than most queries, so only names that occur in the query are registered.
        for name, table in used.items():
            self._register(name, table)
        try:
            # Spark's grammar allows only queries here, also on Spark Connect, where no plan can be inspected.
            return self.spark.sql(f"WITH durabus_query AS (\n{asked}\n) SELECT * FROM durabus_query")  # noqa: S608
        except ParseException as error:
            raise PipelineError(
                f"a lake is read-only, and this does not parse as a query: {first_line(error)}; "
                "write one SELECT, WITH, FROM, VALUES or TABLE"
            ) from error

    def _register(self, name: str, table: str) -> None:
        if self._registered.get(name) == table:
            return
        schema, _, short = name.partition(".")
        own = _own_schema(self.path, schema)
        # The schema has no folder in the lake and is never dropped: Spark would delete the folder with it.
        self.spark.sql(f"CREATE DATABASE IF NOT EXISTS `{own}`")
        self.spark.sql(f"DROP TABLE IF EXISTS `{own}`.`{short}`")  # only the name: the table is external
        self.spark.sql(f"CREATE TABLE `{own}`.`{short}` USING DELTA LOCATION {_quoted(self.location(table))}")
        self._registered[name] = table

    def compact(self, name: str) -> None:
        """Merge small files into large ones. Readers and streams are not affected."""
        self.spark.sql(f"OPTIMIZE {_delta(self.location(name))}")

    def compact_by_itself(self) -> None:
        """Let each writer of this session merge the small files of a table once there are a few dozen.

        For runs that repeat. The first write of a session to a table merges them in any case.
        """
        self.spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")

    def vacuum(self, name: str, *, hours: float) -> None:
        """Delete files that no version of the last ``hours`` needs. Older versions cannot be read after that."""
        self.spark.sql(f"VACUUM {_delta(self.location(name))} RETAIN {hours} HOURS")

    def detail(self, name: str) -> Row:
        """Return Delta's description of a table: files, bytes and more."""
        row = self.spark.sql(f"DESCRIBE DETAIL {_delta(self.location(name))}").first()
        assert row is not None  # noqa: S101  (it describes one table)
        return row

    def version(self, name: str) -> int:
        """Return the newest version of a table."""
        return newest_version(self.spark, self.location(name))

    def history(self, name: str, *, limit: int = 1_000) -> list[Row]:
        """Return the newest commits of a table, newest first."""
        return self.spark.sql(f"DESCRIBE HISTORY {_delta(self.location(name))} LIMIT {limit}").collect()

    def replace_where(self, rows: DataFrame, name: str, condition: str) -> None:
        """Replace the rows that meet a condition in one commit. The new rows must meet it too."""
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", condition)
        writer.save(self.location(name))

    def restore(self, name: str, version: int) -> None:
        """Set a table back to an older version, in a new commit."""
        self.spark.sql(f"RESTORE TABLE {_delta(self.location(name))} TO VERSION AS OF {version}")


def read_delta(spark: SparkSession, location: str, *, version: int | None = None) -> DataFrame:
    """Read the Delta table at a path, in a lake or elsewhere."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(location)


def newest_version(spark: SparkSession, location: str) -> int:
    """Return the newest version of the Delta table at a path, in a lake or elsewhere."""
    return int(spark.sql(f"DESCRIBE HISTORY {_delta(location)} LIMIT 1").collect()[0]["version"])


def _folders(lake: Lake, place: str) -> list[str]:
    schema = place.rpartition("/")[2]
    if not is_url(lake.path):
        return [f"{schema}.{child.name}" for child in Path(place).glob("*") if child.is_dir()]
    try:
        files = (
            lake.spark.read.format("binaryFile")
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


@contextmanager
def _view(rows: DataFrame) -> Iterator[str]:
    name = f"merging_{id(rows)}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def _own_schema(path: str, schema: str) -> str:
    """Return the name of a schema that only this lake uses in the session's catalog."""
    return f"durabus_{hashlib.sha256(path.encode()).hexdigest()[:12]}_{schema}"


def _with_own_schemas(query: str, tables: Mapping[str, str], path: str) -> tuple[str, dict[str, str]]:
    """Return the query with the lake's own name for the schema of each table in it, and these tables."""
    used: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        words = found["name"]
        if words is None:
            return found[0]
        parts = [part.strip().strip("`") for part in words.split(".")]
        name = ".".join(parts[:2]).lower()
        if name not in tables:
            return found[0]
        used[name] = tables[name]
        return ".".join(f"`{part}`" for part in (_own_schema(path, parts[0].lower()), *parts[1:]))

    return _WORDS.sub(renamed, query.strip().rstrip(";")), used


def _delta(location: str) -> str:
    """Return the name of the table at a path, in SQL."""
    return f"delta.`{location.replace('`', '``')}`"


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
