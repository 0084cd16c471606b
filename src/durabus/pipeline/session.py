"""The one place that configures Spark."""

from __future__ import annotations

import os
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
"""What Spark raises. Delta's errors come as the second kind, where PySpark does not know them."""
_DISK_FULL = "No space left on device"
_UNKNOWN_CLASS = "Cannot find main error class"

CONF: dict[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's defaults are for clusters: on two cores these two make small commits three times faster.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # A task's entries are of one day or of few: files of some days open side by side spare it a sort by day.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A store's URL may hold a password: its value shows as *** wherever Spark prints options.
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token",
}
"""What every session of the pipeline needs, on a laptop and on a cluster."""

QUICK: dict[str, str] = {
    # The quick compiler alone has room for 48 MB of code, and Spark needs twice that; it also has 200 MB of classes.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=320m -Xmn320m "
        "-XX:-UsePerfData"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # Small files are written again sooner than rows of them are marked as deleted.
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
    # Delta's own store starts a process for every file that it looks at. This one is for one Java at a time.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
}
"""For runs of less than a minute on small tables: they never earn back what better compilers, generated code and second
plans cost, which is more than half of all their time."""


def spark_session(
    *,
    master: str = "local[*]",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    messages: Path | None = None,
    kafka: bool = False,
) -> SparkSession:
    """A Spark session for the pipeline: the running one if there is one, else local Spark in this process.

    ``messages``: a file for what Java and the workers print, instead of this process's stderr. ``kafka``: with Spark's
    own connector to Kafka, see ``durabus.pipeline.public_lane``.
    """
    if is_running():
        return SparkSession.builder.getOrCreate()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": master,
        "spark.app.name": "durabus pipeline",
        "spark.driver.memory": memory,
        # Names for SQL need a folder, though no table is kept in it.
        "spark.sql.warehouse.dir": str(cache_folder("warehouse")),
        "spark.driver.extraClassPath": class_path(kafka=kafka),
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


def is_running() -> bool:
    """Whether this process has a Spark session, whichever thread began it."""
    return SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None  # noqa: SLF001


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """A child that is started meanwhile keeps this stderr for life; ours comes back."""
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
    """An error of Spark in one line: the rest is a Java stack."""
    lines = _lines(error)
    return lines[0] if lines else type(error).__name__


def root_cause(error: BaseException) -> str:
    """The line of a failed query that says why: the durabus error of a worker, if there is one, or Java's cause."""
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
