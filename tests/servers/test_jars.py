"""Jars are what their lock file says, or they are not used."""

import hashlib
from pathlib import Path

import pytest

from durabus.errors import ServerError
from durabus.jars import read_lock
from durabus.testing.servers.kafka import LOCK, jars_of

KNOWN = "org.example:tool:1.0"


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file of one jar that is in the cache already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lock = tmp_path / "tool.lock"
    lock.write_text(f"# a tool\n{KNOWN} {hashlib.sha256(b'jar').hexdigest()}\n")
    folder = tmp_path / "cache" / "durabus" / f"tool-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    folder.mkdir(parents=True)
    (folder / "tool-1.0.jar").write_bytes(b"jar")
    return lock


def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_what_is_in_the_cache_is_used(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert [path.name for path in jars_of(lock).iterdir()] == ["tool-1.0.jar"]


@pytest.mark.parametrize("left", [b"evil", None], ids=["changed", "missing"])
def test_a_jar_that_is_changed_or_missing_is_fetched_again(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes | None
) -> None:
    jar = jars_of(lock) / "tool-1.0.jar"
    jar.unlink()
    if left is not None:
        jar.write_bytes(left)
    maven(tmp_path, monkeypatch, "mkdir lib && printf jar > lib/tool-1.0.jar")
    assert [path.read_bytes() for path in jars_of(lock).iterdir()] == [b"jar"]


def test_a_changed_jar_is_never_used(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (jars_of(lock) / "tool-1.0.jar").write_bytes(b"evil")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerError, match="there is no mvn here: install Maven"):
        jars_of(lock)


def test_a_fetch_that_brings_nothing_is_refused(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (jars_of(lock) / "tool-1.0.jar").unlink()
    maven(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(ServerError, match=f"cannot fetch {KNOWN}: the download left no file"):
        jars_of(lock)


def test_another_lock_file_has_another_folder(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.write_text(lock.read_text() + "# changed\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerError, match="there is no mvn here: install Maven"):
        jars_of(lock)


def test_a_fetch_that_fails_says_why_and_leaves_nothing(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.write_text(lock.read_text() + "# changed\n")
    maven(tmp_path, monkeypatch, "echo '[ERROR] no route to the repository'; exit 1")
    with pytest.raises(ServerError, match=f"cannot fetch {KNOWN} with mvn: .*no route to the repository"):
        jars_of(lock)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["tool-1.0.jar"]


def test_the_lock_of_kafka_names_coordinates_and_checksums_only() -> None:
    jars = read_lock(LOCK.read_text())
    assert "org.apache.kafka:kafka_2.13:4.3.1" in [jar.coordinates for jar in jars]
    assert {len(jar.sha256) for jar in jars} == {64}
    assert len({jar.file_name for jar in jars}) == len(jars)
    assert "//" not in LOCK.read_text()
