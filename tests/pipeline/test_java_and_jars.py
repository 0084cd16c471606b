"""What the pipeline needs beside Python: found, fetched and checked, or refused in one line."""

import re
from pathlib import Path

import pytest

from durabus import jars
from durabus.errors import JarError, PipelineError
from durabus.jars import ensure_jars
from durabus.pipeline.jars import check_java, class_path, locked_jars


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.1", 25)], ids=["17", "21", "25"])
def test_a_java_that_spark_can_use_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    program(tmp_path / "bin", "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == major


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11)])
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int) -> None:
    java = program(tmp_path / "bin", "java", f"echo 'java version \"{version}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=f"^{re.escape(str(java))} is Java {major}: Spark needs 17 or newer; .*$"):
        check_java()


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match=r"^no Java found: Spark needs Java 17 or newer; .*JAVA_HOME$"):
        check_java()


def test_every_locked_jar_has_coordinates_and_a_hash_and_no_host() -> None:
    locked = locked_jars(kafka=True)
    assert {jar.artifact for jar in locked_jars()} == {"delta-spark_4.2_2.13", "delta-storage"}
    assert {jar.artifact for jar in locked} > {"delta-spark_4.2_2.13", "spark-sql-kafka-0-10_2.13", "kafka-clients"}
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)
    assert all("/" not in jar.coordinates for jar in locked)


def test_a_jar_that_is_not_the_locked_one_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    made = "".join(f"echo forged > lib/{jar.file_name}; " for jar in locked_jars())
    program(tmp_path / "bin", "mvn", f"mkdir lib; {made}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(JarError, match=r"^io\.delta:delta-spark_.* has sha256 [0-9a-f]{64}, not .*: it was not used"):
        ensure_jars(locked_jars(), cache)
    assert list(cache.iterdir()) == []


def test_a_failed_download_is_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "mvn", "echo '[INFO] x'; echo '[ERROR] Could not transfer artifact'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(PipelineError) as caught:
        class_path()
    text = str(caught.value)
    assert "\n" not in text
    assert "cannot fetch io.delta:delta-spark" in text
    assert "Could not transfer artifact" in text
    assert str(tmp_path / "cache") in text


def test_jars_that_are_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ensure_jars(locked_jars(kafka=True))
    monkeypatch.setattr(jars, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert ensure_jars(locked_jars(kafka=True)) == kept
    assert all(path.is_file() for path in kept)
