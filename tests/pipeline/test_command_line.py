"""``durabus pipeline``, as a newcomer types it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.history import History

from durabus import EventStore
from durabus.cli.main import main


@pytest.fixture
def durabus(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run ``durabus pipeline …`` in the test's folder, on the session of all tests; answers stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURABUS_STORE", f"sqlite:///{tmp_path}/bus.db")

    def run(*arguments: str) -> str:
        capsys.readouterr()
        with ThreadPoolExecutor(1) as thread:  # a command has no event loop around it
            code = thread.submit(main, ["pipeline", *arguments]).result()
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


def test_the_first_run_prints_what_it_does_and_nothing_else(tmp_path: Path) -> None:
    """In a process of its own: Java and Spark have much to say that nobody asked for."""
    url = f"sqlite:///{tmp_path}/bus.db"
    environment = {**os.environ, "DURABUS_STORE": url}
    command = [sys.executable, "-m", "durabus.cli.main"]
    subprocess.run([*command, "publish", "order.placed", "--data", '{"order": 7}'], env=environment, check=True)
    done = subprocess.run(
        [*command, "pipeline", "run", "--once", "--entity", "order", "--json"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = {step["step"]: step["rows"] for step in json.loads(done.stdout)["steps"]}
    assert steps == {
        "bronze.event_log": 1, "bronze.quarantine": 0, "verify": 1, "silver.events": 1, "silver.attempts": 1,
        "hourly_counters": 0, "latest_order": 0, "journeys_order": 0, "analyze": 8,
    }  # fmt: skip
    told = done.stderr.splitlines()
    assert told[0] == "starting Spark …"
    assert told[1] == f"store {url}, lake {tmp_path}/lake, Spark 4.2.0 on local[*]"
    assert [line.split()[0] for line in told[2:]] == list(steps)
    assert sorted(path.name for path in tmp_path.iterdir() if "bus.db" not in path.name) == ["lake"]


async def test_from_tables_to_a_replay(durabus: Any, tmp_path: Path, store: EventStore, history: History) -> None:
    await history.varied()
    durabus("run", "--entity", "order")
    query = "select type, count(*) as n from silver.events group by type order by type"
    assert json.loads(durabus("sql", query, "--json")) == [
        {"type": "mail.requested", "n": 2}, {"type": "order.placed", "n": 3}, {"type": "payment.taken", "n": 2}
    ]  # fmt: skip
    assert "mail.requested" in durabus("sql", query)
    assert "silver.events" in durabus("tables")
    assert "dry run: 2 events would be published; nothing was" in durabus("replay", "--type", "payment.*", "--dry-run")
    assert (await store.counts()).pending == 1
    done = json.loads(durabus("replay", "--status", "FAILED", "--id", "second", "--json"))
    assert (done["chosen"], done["published"], done["known"]) == (2, 2, 0)
    assert "0 published, 2 were there already" in durabus("replay", "--status", "FAILED", "--id", "second")
    assert (await store.counts()).pending == 3
    assert durabus("report").strip() == str(tmp_path / "durabus-report.html")
    found = json.loads(durabus("status", "--json"))
    assert (found["behind"], found["unverified"], found["quarantined"]) == (2, 0, 0)
    assert {step["step"]: step["lag"] for step in found["steps"]}["latest_order"] == 0
    assert "latest_order v1" in durabus("status")
    assert "log entries trimmed" in durabus("trim", "--older-than", "0")


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["pipeline", *arguments])
    return code, capsys.readouterr().err


def test_what_is_missing_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABUS_STORE", raising=False)
    code, text = complaint(capsys, "run")
    assert (code, "neither --store nor" in text) == (2, True)
    code, text = complaint(capsys, "run", "--store", "sqlite:///absent.db")
    assert (code, "absent.db does not exist" in text) == (3, True)
    code, text = complaint(capsys, "tables", "--lake", "nowhere")
    assert (code, "nowhere does not exist" in text) == (4, True)


def test_a_java_that_is_too_old_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    (tmp_path / "lake").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr("durabus.pipeline.session.is_running", lambda: False)
    code, text = complaint(capsys, "tables")
    assert code == 1
    assert "is Java 11: Spark needs 17 or newer; set JAVA_HOME to one" in text


async def test_a_wrong_query_is_told_in_one_line(
    durabus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.makedirs(tmp_path / "lake")  # noqa: PTH103  (blocking, and meant)
    with ThreadPoolExecutor(1) as thread:
        code = thread.submit(main, ["pipeline", "sql", "select * from nowhere.at_all"]).result()
    assert code == 1
    err = capsys.readouterr().err
    assert "the query failed: [TABLE_OR_VIEW_NOT_FOUND]" in err
    assert "Traceback" not in err
