"""Delta tables in one folder or bucket: the only place that writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import PipelineError
from durabus.pipeline.session import first_line
from durabus.pipeline.tables import Table

SCHEMAS = ("bronze", "silver", "gold", "ops")
_GONE = "__gone"
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
        """Whether a table is there."""
        if "://" not in self.path:
            return Path(self.location(name), "_delta_log").is_dir()
        try:
            self.spark.read.format("delta").load(self.location(name)).schema  # noqa: B018  (asks the table)
        except AnalysisException:
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
        kind = "appendOnly" if table.append_only else "enableDeletionVectors"
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name(table.name)} ({table.ddl}) USING DELTA {partitioned} "
            # A run every ten seconds makes many small files: after some dozen, the writer makes one of them.
            f"TBLPROPERTIES ('delta.{kind}' = 'true', 'delta.autoOptimize.autoCompact' = 'true')"
        )

    def append(self, rows: DataFrame, name: str, *, app: str = "", version: int = 0) -> None:
        """Add rows in one commit. With ``app``, a version that this app wrote before is skipped.

        Columns that the table lacks are added to it.
        """
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        if app:
            writer = writer.option("txnAppId", app).option("txnVersion", version)
        writer.save(self.location(name))

    def overwrite(self, rows: DataFrame, name: str) -> None:
        """Replace all rows, and the columns, in one commit. Readers keep what they began with; older versions stay."""
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(self.location(name))

    def merge(self, rows: DataFrame, name: str, key: Sequence[str], *, gone: DataFrame | None = None) -> None:
        """Put rows in place of those with the same key, and delete the keys of ``gone`` that are not among them."""
        on = " AND ".join(f"t.`{column}` <=> s.`{column}`" for column in key)
        delete = ""
        if gone is not None:
            same_key = [gone[column].eqNullSafe(rows[column]) for column in key]
            left = gone.join(rows, same_key, "left_anti").select(*key, F.lit(True).alias(_GONE))
            rows = rows.withColumn(_GONE, F.lit(False)).unionByName(left, allowMissingColumns=True)
            delete = f"WHEN MATCHED AND s.{_GONE} THEN DELETE"
        columns = [column for column in rows.columns if column != _GONE]
        updates = ", ".join(f"t.`{column}` = s.`{column}`" for column in columns)
        names, values = (", ".join(f"{p}`{column}`" for column in columns) for p in ("", "s."))
        insert = f"WHEN NOT MATCHED AND NOT s.{_GONE}" if gone is not None else "WHEN NOT MATCHED"
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

    def register(self) -> None:
        """Let SQL know the tables by their names; a projection also by its name without the version."""
        tables = self.tables()
        newest = {plain_name(name): name for name in sorted(tables, key=version_of)}
        names = newest | {name: name for name in tables}
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
        except AnalysisException:
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
