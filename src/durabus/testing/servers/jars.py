"""Java archives by coordinates and checksum: fetched once with Maven, kept in the user's cache, checked every time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from durabus.errors import ServerError

FETCH_WITHIN = 900.0
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
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


class ServerJar(msgspec.Struct, frozen=True):
    """One line of a lock file: ``group:name:version sha256``."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name in a folder."""
        return f"{self.name}-{self.version}.jar"


def jars_of(lock: Path) -> list[ServerJar]:
    """What a lock file names; lines that begin with # are comments."""
    return list(_read(lock.read_text(encoding="ascii")))


def _read(text: str) -> Iterator[ServerJar]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinates, sha256 = line.split()
            group, name, version = coordinates.split(":")
            yield ServerJar(group, name, version, sha256)


def fetched(lock: Path) -> Path:
    """The folder with the jars of a lock file. The first time takes Maven, a network and half a minute."""
    jars = jars_of(lock)
    folder = _cache() / f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        _fetch(jars, folder)
    for jar in jars:
        _check(jar, folder / jar.file)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "durabus"


def _fetch(jars: list[ServerJar], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerError("the jars of this server are fetched with Maven, and there is no mvn here: install Maven")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _turn(folder.parent), tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as work:
        if folder.is_dir():
            return
        named = "\n".join(DEPENDENCY.format(group=jar.group, name=jar.name, version=jar.version) for jar in jars)
        Path(work, "pom.xml").write_text(POM.format(dependencies=named), encoding="ascii")
        options = ["-q", "-B", f"{PLUGIN}:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                [maven, *options], cwd=work, capture_output=True, text=True, timeout=FETCH_WITHIN, check=False
            )
        except subprocess.TimeoutExpired:
            raise ServerError(f"Maven did not fetch {len(jars)} jars within {FETCH_WITHIN:g} s: try again") from None
        if done.returncode != 0:
            raise ServerError(f"Maven could not fetch {len(jars)} jars: {_first_error(done.stdout + done.stderr)}")
        for jar in jars:
            _check(jar, Path(work, "lib", jar.file))
        Path(work, "lib").rename(folder)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Two Mavens at once would write into one local repository."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check(jar: ServerJar, path: Path) -> None:
    if not path.is_file():
        raise ServerError(f"{path} is missing: remove its folder, it is fetched again")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise ServerError(f"{path} has the sha256 {found}, not {jar.sha256}: remove its folder, it is fetched again")


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "ERROR" in line]
    return lines[0] if lines else "it said nothing"
