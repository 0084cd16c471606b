"""Java archives by Maven coordinates and sha256: fetched once, kept in the user's cache, checked at every use."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from durabus.errors import JarError

FETCH_WITHIN = 900.0
SHOWN = 300
"""Characters of a failed download's complaint that are shown."""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>durabus</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}
</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


class Jar(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a lock file: ``group:artifact:version sha256``."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """The coordinates, in the notation of Maven and Spark."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """The name that Maven gives the file."""
        return f"{self.artifact}-{self.version}.jar"


Resolver = Callable[[Sequence[Jar], Path], list[Path]]
"""Fetches jars into a work folder. Returns their files in the same order."""


def read_lock(lock: str) -> list[Jar]:
    """The jars that the text of a lock file lists. Lines that begin with # are comments."""
    lines = [line.split() for line in lock.splitlines() if line and not line.startswith("#")]
    return [
        Jar(group=group, artifact=artifact, version=version, sha256=sha256)
        for coordinates, sha256 in lines
        for group, artifact, version in [coordinates.split(":")]
    ]


def cache_folder(name: str) -> Path:
    """``$XDG_CACHE_HOME/durabus/NAME``, or the same under ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "durabus" / name


def ensure_jars(
    jars: Sequence[Jar], folder: Path | None = None, *, without_maven: Resolver | None = None
) -> list[Path]:
    """Return the files of these jars in ``folder`` (default: the user's cache). Fetches what is absent or changed.

    Raises ``JarError`` if a jar cannot be fetched, or if what was fetched is not what the lock file says.
    """
    folder = cache_folder("jars") if folder is None else folder
    if any(not _is_intact(jar, folder) for jar in jars):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _one_fetch_at_a_time(folder):
                _fetch([jar for jar in jars if not _is_intact(jar, folder)], folder, without_maven)
        except OSError as error:
            raise JarError(f"the jars cannot be kept in {folder}: {error.strerror or error}") from error
    return [folder / jar.file_name for jar in jars]


def run_fetch(command: Sequence[str], jars: Sequence[Jar], *, way: str, cwd: Path) -> None:
    """Run a program that fetches jars. Raises ``JarError`` with its first complaint if it fails."""
    wanted = jars[0].coordinates + (f" and {len(jars) - 1} more jars" if len(jars) > 1 else "")
    try:
        done = subprocess.run(  # noqa: S603  (our own words and the lock file's)
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=FETCH_WITHIN,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise JarError(f"cannot fetch {wanted} with {way} within {FETCH_WITHIN:g} s: try again") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        complaint = next((line for line in lines if "ERROR" in line or "not found" in line or "Error" in line), "")
        raise JarError(f"cannot fetch {wanted} with {way}: {complaint[:SHOWN] or f'exit status {done.returncode}'}")


def _is_intact(jar: Jar, folder: Path) -> bool:
    path = folder / jar.file_name
    return path.is_file() and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _one_fetch_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the folder: two Mavens at once would write into one local repository."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fetch(jars: Sequence[Jar], folder: Path, without_maven: Resolver | None) -> None:
    if not jars:
        return  # another process has fetched them meanwhile
    resolver = _with_maven if shutil.which("mvn") else without_maven
    if resolver is None:
        raise JarError("the jars are fetched with Maven, and there is no mvn here: install Maven")
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetching-") as work:
        found = resolver(jars, Path(work))
        for jar, path in zip(jars, found, strict=True):
            _check(jar, path)
        for jar, path in zip(jars, found, strict=True):
            path.replace(folder / jar.file_name)  # in one step: another process may look at the same time


def _with_maven(jars: Sequence[Jar], work: Path) -> list[Path]:
    named = "\n".join(DEPENDENCY.format(**msgspec.structs.asdict(jar)) for jar in jars)
    (work / "pom.xml").write_text(POM.format(dependencies=named), encoding="ascii")
    command = ["mvn", "-q", "-B", f"{PLUGIN}:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
    run_fetch(command, jars, way="mvn", cwd=work)
    return [work / "lib" / jar.file_name for jar in jars]


def _check(jar: Jar, path: Path) -> None:
    if not path.is_file():
        raise JarError(f"cannot fetch {jar.coordinates}: the download left no file; try again")
    actual = _sha256(path)
    if actual != jar.sha256:
        raise JarError(f"{jar.coordinates} has sha256 {actual}, not {jar.sha256}: it was not used; try again")
