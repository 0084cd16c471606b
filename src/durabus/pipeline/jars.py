"""The Java and the jars that Spark needs beside PySpark, checked before Spark fails without them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from durabus.errors import JarError, PipelineError
from durabus.jars import Jar, cache_folder, ensure_jars, read_lock, run_fetch

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> int:
    """Return the major version of the Java that Spark will use. Raises ``PipelineError`` if it is absent or too old."""
    java = _java()
    if java is None:
        raise PipelineError(
            f"no Java found: Spark needs Java {OLDEST} or newer; install one (Debian: openjdk-17-jre-headless), "
            "or set JAVA_HOME"
        )
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError as error:
        raise PipelineError(
            f"{java} cannot be run ({error.strerror}): set JAVA_HOME to Java {OLDEST} or newer"
        ) from error
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        raise PipelineError(f"{java} does not tell its version: set JAVA_HOME to Java {OLDEST} or newer")
    major = int(found[1])
    if major < OLDEST:
        raise PipelineError(f"{java} is Java {major}: Spark needs {OLDEST} or newer; set JAVA_HOME to one")
    return major


def _java() -> str | None:
    """Return the Java that Spark's own launcher would find."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if path.exists() else None
    return shutil.which("java")


_RESOLVE = """\
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2]).getOrCreate().stop()
"""


def locked_jars(*, kafka: bool = False) -> list[Jar]:
    """Return the jars of ``jars.lock``; with ``kafka`` also Spark's own connector to Kafka."""
    names = ["jars.lock", "jars_kafka.lock"] if kafka else ["jars.lock"]
    return read_lock("".join(files(__package__).joinpath(name).read_text(encoding="utf-8") for name in names))


def class_path(*, kafka: bool = False) -> str:
    """Return the jars as one class path, for ``spark-submit --driver-class-path``. Fetches them the first time."""
    try:
        return os.pathsep.join(map(str, ensure_jars(locked_jars(kafka=kafka), without_maven=_with_spark)))
    except JarError as error:
        raise PipelineError(f"{error}; or put the jars into {cache_folder('jars')} by hand") from error


def _with_spark(jars: Sequence[Jar], work: Path) -> list[Path]:
    wanted = ",".join(jar.coordinates for jar in jars)
    command = [sys.executable, "-c", _RESOLVE, wanted, str(work / "ivy")]
    run_fetch(command, jars, way="Spark's resolver (mvn is not installed)", cwd=work)
    return [work / "ivy" / "jars" / f"{jar.group}_{jar.file_name}" for jar in jars]


if __name__ == "__main__":
    sys.stdout.write(f"{class_path()}\n")
