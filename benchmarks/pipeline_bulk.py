"""The fastest plain ways from a store's tables to a Delta table, to be measured against.

They know the tables, read them in parallel and write the same columns to the same format, and do nothing else: no
cursor, no sequence, no check of what does not parse, no progress. One is Spark's own JDBC reader, the other a Python
data source of thirty lines over ``sqlite3`` (PostgreSQL has none: JDBC is faster there than any Python driver).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from durabus.jars import Jar
from durabus.pipeline.schema import COLUMNS, SPARK, record_batch

DRIVERS = [
    Jar(
        group="org.xerial",
        artifact="sqlite-jdbc",
        version="3.53.4.0",
        sha256="bcb1f51e36f940867e83342f9efbf5968ac44a6bef4d397bb4af7b17b45cd2fb",
    ),
    Jar(
        group="org.postgresql",
        artifact="postgresql",
        version="42.7.14",
        sha256="73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    ),
]
ROWS_PER_TASK = 250_000
SQLITE = (
    "CAST(position AS TEXT) AS position, action, id, event_id, bus, type, status, at, created_at, attempt, generation, "
    "fence, worker_id, error, reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, "
    "payload, errors, results"
)
SQLITE_TYPES = (
    "position STRING, action STRING, id BIGINT, event_id STRING, bus STRING, type STRING, status STRING, at DOUBLE, "
    "created_at DOUBLE, attempt BIGINT, generation BIGINT, fence BIGINT, worker_id STRING, error STRING, "
    "reason STRING, next_retry_at DOUBLE, execution_time_ms DOUBLE, status_code BIGINT, tags STRING, metadata STRING, "
    "parent_id STRING, payload STRING, errors STRING, results STRING, number BIGINT"
)
INSTANTS = ("at", "created_at", "next_retry_at")
POSTGRESQL = """(
    SELECT tx::text || '-' || position AS position, 'PUBLISHED' AS action, id, event_id::text AS event_id, bus, type,
        'PENDING' AS status, at, at AS created_at, 0 AS attempt, 0 AS generation, 0::bigint AS fence,
        NULL::text AS worker_id, NULL::text AS error, NULL::text AS reason,
        NULL::timestamptz AS next_retry_at, NULL::float8 AS execution_time_ms, NULL::integer AS status_code, tags,
        metadata, parent_id::text AS parent_id, NULL::text AS payload, NULL::text AS errors, NULL::text AS results
    FROM durabus.published
    UNION ALL
    SELECT tx::text || '-' || position, action, id, event_id::text, bus, type, status, at, created_at, attempt,
        generation, fence, worker_id, error, reason, next_retry_at, execution_time_ms, status_code, tags, metadata,
        parent_id::text, payload, errors, results
    FROM durabus.event_log
) AS log"""


class PlainReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        last = newest(self._path)
        return [InputPartition((at, min(at + ROWS_PER_TASK, last))) for at in range(0, last, ROWS_PER_TASK)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        database = sqlite3.connect(self._path)
        query = f"SELECT {SQLITE} FROM event_log WHERE position > ? AND position <= ? ORDER BY position"  # noqa: S608
        rows = database.execute(query, partition.value)
        while page := rows.fetchmany(10_000):
            yield record_batch(page, range(len(page)))
        database.close()


class PlainSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "plain_sqlite"

    def schema(self) -> str:
        return SPARK

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (Spark's name)
        return PlainReader(self.options["path"])


def newest(path: str) -> int:
    database = sqlite3.connect(path)
    (last,) = database.execute("SELECT max(position) FROM event_log").fetchone()
    database.close()
    return int(last)


def by_python(spark: SparkSession, url: str) -> DataFrame:
    """Copy the log of SQLite by the data source of thirty lines."""
    spark.dataSource.register(PlainSource)
    return spark.read.format("plain_sqlite").option("path", path_of(url)).load().drop("ordinal")


def by_jdbc(spark: SparkSession, url: str) -> DataFrame:
    """Copy the log of either store by Spark's own reader, in pieces of the same size."""
    if url.startswith("sqlite"):
        log = f"(SELECT {SQLITE}, position AS number FROM event_log) AS log"  # noqa: S608  (our own words)
        last = newest(path_of(url))
        frame = _jdbc(spark, f"jdbc:sqlite:{path_of(url)}", log, "number", last, customSchema=SQLITE_TYPES)
        seconds = {name: F.timestamp_micros((F.col(name) * 1e6).cast("bigint")) for name in INSTANTS}
        return frame.withColumns(seconds).select(*COLUMNS)
    parts = urlsplit(url)
    place = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
    who = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    newest_id = "SELECT max(id) FROM durabus.published"
    top = spark.read.format("jdbc").options(url=place, query=newest_id, **who).load().first()
    assert top is not None
    return _jdbc(spark, place, POSTGRESQL, "id", top[0], **who).select(*COLUMNS)


def _jdbc(spark: SparkSession, place: str, log: str, column: str, last: int, **more: str) -> DataFrame:
    pieces = {"partitionColumn": column, "lowerBound": "0", "upperBound": str(last)}
    tasks = str(max(2, last // ROWS_PER_TASK))
    reader = spark.read.format("jdbc").options(url=place, dbtable=log, fetchsize="10000", numPartitions=tasks)
    return reader.options(**pieces, **more).load()


def path_of(url: str) -> str:
    return urlsplit(url).path[1:]
