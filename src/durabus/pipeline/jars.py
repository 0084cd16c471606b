"""The Java that Spark will run on, found before Spark fails without it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from durabus.errors import PipelineError

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> int:
    """The major version of the Java that Spark takes; refuses a missing or too old one."""
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
    """As Spark's own launcher looks for it."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if path.exists() else None
    return shutil.which("java")


MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_TIMEOUT = 600.0
_SHOWN = 300
"""Characters of a failed download's complaint that are shown."""
_RESOLVE = """\
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2]).getOrCreate().stop()
"""


class Jar(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``jars.lock``."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """As Maven and Spark write them."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """As Maven names the file."""
        return f"{self.artifact}-{self.version}.jar"


def locked_jars(*, kafka: bool = False) -> list[Jar]:
    """What ``jars.lock`` lists; with ``kafka`` also Spark's own connector to Kafka."""
    names = ["jars.lock", "jars_kafka.lock"] if kafka else ["jars.lock"]
    text = "".join(files(__package__).joinpath(name).read_text(encoding="utf-8") for name in names)
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [
        Jar(group=group, artifact=artifact, version=version, sha256=sha256)
        for coordinates, sha256 in lines
        for group, artifact, version in [coordinates.split(":")]
    ]


def cache_folder(name: str = "jars") -> Path:
    """``$XDG_CACHE_HOME/durabus/NAME``, or the same under ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "durabus" / name


def ensure_jars(jars: Sequence[Jar], folder: Path | None = None) -> list[Path]:
    """These jars as files in ``folder`` (the user's cache): fetched if absent, and checked in any case."""
    folder = cache_folder() if folder is None else folder
    missing = [jar for jar in jars if not _is_intact(folder / jar.file_name, jar)]
    if missing:
        _fetch(missing, folder)
    return [folder / jar.file_name for jar in jars]


def class_path(*, kafka: bool = False) -> str:
    """The jars as one class path, for ``spark-submit --driver-class-path``."""
    return os.pathsep.join(str(jar) for jar in ensure_jars(locked_jars(kafka=kafka)))


def _is_intact(path: Path, jar: Jar) -> bool:
    return path.is_file() and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(jars: list[Jar], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetching-") as work:
            found = _with_maven(jars, Path(work)) if shutil.which("mvn") else _with_spark(jars, Path(work))
            for jar, path in zip(jars, found, strict=True):
                _check(jar, path)
                path.replace(folder / jar.file_name)  # in one step: another run may look at the same time
    except OSError as error:
        raise PipelineError(f"the jars cannot be kept in {folder}: {error.strerror or error}") from error


def _with_maven(jars: list[Jar], work: Path) -> list[Path]:
    for jar in jars:
        _run(
            ["mvn", "-q", "-B", MAVEN_COPY, f"-Dartifact={jar.coordinates}", f"-DoutputDirectory={work}",
             "-Dmdep.useBaseVersion=true"],
            jar.coordinates,
        )  # fmt: skip
    return [work / jar.file_name for jar in jars]


def _with_spark(jars: list[Jar], work: Path) -> list[Path]:
    wanted = ",".join(jar.coordinates for jar in jars)
    _run([sys.executable, "-c", _RESOLVE, wanted, str(work / "ivy")], wanted)
    return [work / "ivy" / "jars" / f"{jar.group}_{jar.file_name}" for jar in jars]


def _run(command: list[str], wanted: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603  (our own words and the lock file's)
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise _refused(wanted, f"no answer within {FETCH_TIMEOUT:g} s") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        complaint = next((line for line in lines if "ERROR" in line or "not found" in line or "Error" in line), "")
        raise _refused(wanted, complaint[:_SHOWN] or f"exit status {done.returncode}")


def _check(jar: Jar, path: Path) -> None:
    if not path.is_file():
        raise _refused(jar.coordinates, "the download left no file")
    actual = _sha256(path)
    if actual != jar.sha256:
        raise PipelineError(f"{jar.coordinates} has sha256 {actual}, not {jar.sha256}: it was not used; try again")


def _refused(wanted: str, why: str) -> PipelineError:
    way = "mvn" if shutil.which("mvn") else "Spark's resolver (mvn is not installed)"
    return PipelineError(f"cannot fetch {wanted} with {way}: {why}; put the jar into {cache_folder()} by hand")


if __name__ == "__main__":
    sys.stdout.write(f"{class_path()}\n")
