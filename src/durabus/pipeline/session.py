"""The one place that configures Spark."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it ships no types
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from durabus.errors import PipelineError
from durabus.jars import cache_folder
from durabus.pipeline.jars import check_java, class_path

SPARK_ERRORS = (PySparkException, Py4JError)
"""The errors of Spark. Errors of Delta that PySpark does not know are of the second class."""
_IN_THIS_PROCESS = re.compile(r"local(\[.*\])?")
_IN_THIS_HOST = re.compile(r"local|spark://(127\.|localhost\b)")
"""Masters whose executors reach the driver under its loopback address."""
_DISK_FULL = "No space left on device"
_UNKNOWN_CLASS = "Cannot find main error class"

CONF: dict[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's defaults are for clusters: on two cores these two make small commits three times faster.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # On hosts outside UTC, Delta would read a table's whole log again after each commit, to compare two lists of files.
    "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # The entries of a task are of few days. It keeps a file open for each of them instead of sorting by day.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A store's URL may contain a password, so Spark prints it as ***.
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token",
}
"""Settings of every session of the pipeline, on a laptop and on a cluster."""

FEW_ROWS: dict[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings for queries on few rows. Compiling generated code and planning each stage anew take longer than such a
query itself. ``with_few_rows`` sets them for a while."""

QUICK: dict[str, str] = {
    # By default Java's quick compiler has 48 MB for code; Spark needs twice that. Spark also has 200 MB of classes.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=320m -Xmn320m "
        "-XX:-UsePerfData"
    ),
    **FEW_ROWS,
    # Rewriting a small file is faster than marking its rows as deleted.
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
    # Delta's default starts a process for every file that it looks at. This one supports one Java at a time.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
}
"""Settings for runs of less than a minute on small tables. For these, optimizing compilers, generated code and adaptive
plans take more than half of the time and save less."""


def spark_session(
    *,
    master: str = "local[*]",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    messages: Path | None = None,
    kafka: bool = False,
) -> SparkSession:
    """Return a Spark session for the pipeline: the running one, or else a new one, local or on a cluster.

    ``messages`` is a file for the output of Java and the workers, instead of this process's stderr. ``kafka`` adds
    Spark's own connector to Kafka, see ``durabus.pipeline.public_lane``.
    """
    if is_running():
        return SparkSession.builder.getOrCreate()
    jars = class_path(kafka=kafka)
    if _IN_THIS_HOST.match(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": master,
        "spark.app.name": "durabus pipeline",
        "spark.driver.memory": memory,
        # Spark needs a folder for the names in SQL. It has no tables.
        "spark.sql.warehouse.dir": str(cache_folder("warehouse")),
        "spark.driver.extraClassPath": jars,
        # Executors are other processes, which fetch the jars from the driver.
        **({} if _IN_THIS_PROCESS.fullmatch(master) else {"spark.jars": jars.replace(os.pathsep, ",")}),
        **CONF,
        **(conf or {}),
    }
    check_java()
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(messages):
            session: SparkSession = builder.getOrCreate()
    except (*SPARK_ERRORS, RuntimeError) as error:
        where = f" (more in {messages})" if messages else ""
        raise PipelineError(f"Spark did not start: {first_line(error)}{where}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def with_few_rows(spark: SparkSession) -> Iterator[None]:
    """Plan all queries of this session for few rows until the context ends."""
    before = {name: spark.conf.get(name, None) for name in FEW_ROWS}
    for name, value in FEW_ROWS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            if kept is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, kept)


def is_running() -> bool:
    """Return whether this process has a Spark session, in any thread."""
    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None  # noqa: SLF001


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Send stderr to a file until the context ends. A child that starts meanwhile keeps the file as its stderr."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def first_line(error: BaseException) -> str:
    """Return the first line of a Spark error. The rest is a Java stack."""
    lines = _lines(error)
    return lines[0] if lines else type(error).__name__


def root_cause(error: BaseException) -> str:
    """Return the cause of a failed query in one line: the durabus error of a worker, or else the last cause in Java."""
    lines = _lines(error)
    if any(_DISK_FULL in line for line in lines):
        return f"{_DISK_FULL}: free some where the lake is, or where SPARK_LOCAL_DIRS points, and run it again"
    ours = [line for line in lines if line.startswith("durabus.errors.")]
    if ours:
        return ours[-1].removeprefix("durabus.errors.")
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else first_line(error)


def _lines(error: BaseException) -> list[str]:
    if _UNKNOWN_CLASS in str(error) and error.__context__ is not None:
        error = error.__context__  # Delta's own error, which PySpark failed to look up
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        return [lines[1].removeprefix(": "), *lines[2:]]  # the first line only names the call
    return lines
