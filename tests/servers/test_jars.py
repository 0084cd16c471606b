"""Jars are what their lock file says, or they are not used."""

import hashlib
from pathlib import Path

import pytest

from durabus.errors import ServerError
from durabus.testing.servers.jars import fetched, jars_of
from durabus.testing.servers.kafka import LOCK

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


def test_what_is_in_the_cache_is_used(lock: Path) -> None:
    assert [path.name for path in fetched(lock).iterdir()] == ["tool-1.0.jar"]


def test_a_changed_jar_is_refused(lock: Path) -> None:
    (fetched(lock) / "tool-1.0.jar").write_bytes(b"evil")
    with pytest.raises(ServerError, match=r"has the sha256 .* not .*: remove its folder"):
        fetched(lock)


def test_a_missing_jar_is_refused(lock: Path) -> None:
    (fetched(lock) / "tool-1.0.jar").unlink()
    with pytest.raises(ServerError, match="is missing: remove its folder"):
        fetched(lock)


def test_another_lock_file_has_another_folder(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.write_text(lock.read_text() + "# changed\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerError, match="there is no mvn here: install Maven"):
        fetched(lock)


def test_a_fetch_that_fails_says_why_and_leaves_nothing(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.write_text(lock.read_text() + "# changed\n")
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho '[ERROR] no route to the repository'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent))
    with pytest.raises(ServerError, match=r"could not fetch 1 jars: .*no route to the repository"):
        fetched(lock)
    assert len(list((tmp_path / "cache" / "durabus").iterdir())) == 1


def test_the_lock_of_kafka_names_coordinates_and_checksums_only() -> None:
    jars = jars_of(LOCK)
    assert ("org.apache.kafka", "kafka_2.13", "4.3.1") in [(jar.group, jar.name, jar.version) for jar in jars]
    assert {len(jar.sha256) for jar in jars} == {64}
    assert len({jar.file for jar in jars}) == len(jars)
    assert "//" not in LOCK.read_text()
