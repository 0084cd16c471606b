"""``durabus pipeline``, as a newcomer types it."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.history import History

from durabus import ManualClock, open_store
from durabus.cli.lake import print_result
from durabus.cli.main import main
from durabus.cli.pipeline import pipeline
from durabus.errors import PipelineError
from durabus.pipeline.lake import QueryResult, first_rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ends(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run ``durabus …`` in the test's folder, on the session of all tests. Returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DURABUS_STORE", f"sqlite:///{tmp_path}/bus.db")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with ThreadPoolExecutor(1) as thread:  # a command has no event loop around it
            code = thread.submit(main, list(arguments)).result()
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def durabus(ends: Any) -> Any:
    """Run ``durabus …``, which must succeed. Returns stdout and stderr."""

    def run(*arguments: str) -> tuple[str, str]:
        code, out, err = ends(*arguments)
        assert code == 0, err
        return out, err

    return run


@pytest.mark.long
def test_a_command_prints_its_result_and_nothing_else(tmp_path: Path) -> None:
    """The command runs in a process of its own, because Java and Spark print much by themselves."""
    (tmp_path / "lake").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "durabus.cli.main", "pipeline", "tables", "--json"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"tables": []}
    assert done.stderr.splitlines() == ["starting Spark …"]
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_the_numbers_of_a_table_stand_one_below_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"type": "order.placed", "events": 5}, {"type": "mail.sent", "events": 1200}]
    print_result(QueryResult(["type", "events"], rows), as_json=False)
    head, _, *lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len({len(line) for line in (head, *lines)}) == 1


def documented_commands() -> list[str]:
    """Return the commands of both pages in their order. A command that both name comes once."""
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/reference/pipeline.md")]
    typed = [line.removeprefix("$ ") for page in pages for line in page.splitlines()]
    return list(dict.fromkeys(line for line in typed if line.startswith(("durabus pipeline", "durabus events show"))))


@pytest.mark.long
async def test_every_documented_command_works_as_typed(
    durabus: Any, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.delenv("DURABUS_STORE")
    store = await open_store(url, clock=clock)
    history = History(store, clock)
    await history.varied()
    await history.publish("evil.type", {"order": 9})
    for claim in await history.claim(limit=10):
        await history.fail(claim, "<script>alert('x')</script>", None)
    told: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    for line in documented_commands():
        _, *words = shlex.split(line)
        name = " ".join(words[:2])
        told[name], err = durabus(*words)
        said[name] = err.splitlines()
    assert said["pipeline run"][0] == f"store sqlite:///shop.db, lake {tmp_path}/lake, Spark 4.2.0 on local[*]"
    assert [line.split()[0] for line in said["pipeline run"][1:]] == [
        "bronze.event_log", "bronze.quarantine", "verify", "silver.events", "silver.attempts", "hourly_counters",
        "analyze",
    ]  # fmt: skip
    counts = {row.split()[0]: row.split()[-1] for row in told["pipeline sql"].splitlines() if "." in row}
    assert counts == {"evil.type": "1", "mail.requested": "2", "order.placed": "3", "payment.taken": "2"}
    assert told["pipeline report"].strip() == str(tmp_path / "durabus-report.html")
    expect_one_file(tmp_path / "durabus-report.html")
    assert json.loads(durabus("pipeline", "report", "--json")[0]) == {"report": str(tmp_path / "durabus-report.html")}
    assert "dry run: 3 events would be published\n" in told["pipeline replay"]
    assert re.search(r"behind the store +0\b", told["pipeline status"])
    assert "hourly_counters v1" in told["pipeline status"]
    assert "silver.attempts" in told["pipeline tables"]
    assert "log entries trimmed" in told["pipeline trim"]
    assert re.search(r"not archived yet +0\b", told["pipeline prove"])
    durabus("pipeline", "trim", "--older-than", "0", "--store", "sqlite:///shop.db")
    assert await store.get_event(1) is None
    shown, _ = durabus("events", "show", "1", "--lake", "lake", "--store", "sqlite:///shop.db")
    assert '{"order":1,"total":9.5}' in told["events show"]
    assert '{"order":1,"total":9.5}' in shown
    assert "silver.events" in told["pipeline compact"]

    monkeypatch.setenv("DURABUS_STORE", url)
    again = ("pipeline", "replay", "--type", "payment.*", "--status", "FAILED", "--id", "second")
    done = json.loads(durabus(*again, "--json")[0])
    assert (done["chosen"], done["published"], done["known"]) == (2, 2, 0)
    assert "0 published, 2 already published" in durabus(*again)[0]
    assert (await store.counts()).pending == 2
    await store.close()
    found = json.loads(durabus("pipeline", "status", "--json")[0])
    assert (found["behind"], found["unverified"], found["quarantined"]) == (2, 0, 0)
    assert {step["step"]: step["lag"] for step in found["steps"]}["hourly_counters"] == 0


def expect_one_file(report: Path) -> None:
    """Check that the report is one file that loads nothing and contains no markup from an event."""
    page = report.read_text(encoding="utf-8")
    assert "<!-- " not in page
    assert "default-src 'none'" in page
    assert "<script>alert" not in page
    assert re.findall(r"(?:src|href)=[^ >]*", page) == ['href="#main"']
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    activity = json.loads(data)["activity"]
    counts = {one["type"]: one["counters"] for one in activity["series"] if one["facet"] == "type"}
    assert sum(counts["payment.taken"]["published"]) == sum(counts["payment.taken"]["dead"]) > 0
    assert any("<script>alert" in (one["example"] or "") for one in activity["series"] if one["facet"] == "error")


def test_every_command_can_print_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"run", "plan", "graph", "sql", "rebuild", "rollback", "prove", "trim", "forget", "compact"} <= set(pipeline)
    for name in pipeline:
        if not name.startswith("-"):
            assert main(["pipeline", name, "--help"]) == 0
            assert "--json" in capsys.readouterr().out, name


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["pipeline", *arguments])
    return code, capsys.readouterr().err


def test_what_is_missing_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABUS_STORE", raising=False)
    code, text = complaint(capsys, "run")
    assert (code, "durabus.db does not exist" in text) == (3, True), "the default store"
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


def test_instants_are_shown_in_utc_wherever_the_host_is(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        query = "SELECT TIMESTAMP '2026-01-02 03:04:05Z' AS at, TIMESTAMP_NTZ '2026-01-02 03:04:05' AS local"
        found = first_rows(spark.sql(query), 1)
    finally:
        monkeypatch.undo()
        time.tzset()
    then = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  (as it is printed)
    assert found.rows == [{"at": then, "local": then}]


async def test_a_wrong_query_is_reported_in_one_line(
    durabus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.makedirs(tmp_path / "lake")  # noqa: PTH103  (blocking, and meant)
    with ThreadPoolExecutor(1) as thread:
        code = thread.submit(main, ["pipeline", "sql", "select * from nowhere.at_all"]).result()
    assert code == 1
    err = capsys.readouterr().err
    assert "the query failed: [TABLE_OR_VIEW_NOT_FOUND]" in err
    assert "Traceback" not in err


def test_plan_and_graph_say_what_a_run_would_do(durabus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of SQL files, a module, and a lake that has no table yet."""
    folder = tmp_path / "declared"
    folder.mkdir()
    by_bus = "-- key: bus\nSELECT bus, count(*) AS n FROM {events} GROUP BY 1"
    (folder / "by_bus.sql").write_text(by_bus)
    (folder / "busiest.sql").write_text("-- key: bus\n-- inputs: gold.by_bus\nSELECT bus FROM {by_bus} WHERE n > 9")
    (folder / "later.sql").write_text("-- key: id\n-- inputs: silver.order_placed\nSELECT 1 AS id FROM {order_placed}")
    found = json.loads(durabus("pipeline", "plan", "--projections", "declared/", "--json")[0])["plan"]
    modes = {one["projection"]: one["mode"] for one in found}
    assert modes == {"hourly_counters": "add", "by_bus": "add", "busiest": "full", "later": "unknown"}
    assert list(modes).index("by_bus") < list(modes).index("busiest")
    why = {one["projection"]: one["why"] for one in found}
    assert "has no table silver.order_placed: `durabus pipeline run` makes it" in why["later"]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_tables.py").write_text(
        "from durabus.pipeline.projections import projection\n\n@projection(key='type')\ndef kinds(events):\n"
        "    return events.groupBy('type').count()\n"
    )
    shown = durabus("pipeline", "plan", "--projections", "my_tables")[0]
    assert re.search(r"kinds v1 +silver\.events +add +new input is added to the row of its type", shown)
    drawn = durabus("pipeline", "graph", "--projections", "my_tables", "--out", "tables.svg")[0]
    assert drawn.strip() == str(tmp_path / "tables.svg")
    assert ">gold.kinds</text>" in (tmp_path / "tables.svg").read_text(encoding="utf-8")


def test_what_declares_no_projection_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_tables.py").write_text("SOME = 1\n")
    code, text = complaint(capsys, "graph", "--projections", "no_tables")
    assert (code, "no_tables declares no projection, typed table or expectation" in text) == (2, True)
    code, text = complaint(capsys, "graph", "--projections", "absent/")
    assert (code, "cannot load 'absent/'" in text) == (2, True)
    code, text = complaint(capsys, "graph", "--projections", "no_tables:SOME")
    assert (code, "is not a list of projections" in text) == (2, True)
    code, text = complaint(capsys, "run", "--interval=-1")
    assert (code, "--interval -1: must be 0 or more seconds" in text) == (2, True)


STRICT = """
from durabus.pipeline.expectations import Expectation, OnBreak

RULES = [Expectation(name="no orders", table="silver.events", rule="type <> 'order.placed'", action=OnBreak.FAIL)]
"""


@pytest.mark.long
async def test_a_lake_is_repaired_by_its_commands(
    ends: Any, durabus: Any, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lake is rebuilt and loses entries to a forced trim; two others begin on the log that was trimmed."""

    def told(*arguments: str) -> Any:
        return json.loads(durabus("pipeline", *arguments, "--json")[0])

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "strict.py").write_text(STRICT)
    await history.completed()
    code, _, err = ends("pipeline", "run", "--projections", "strict:RULES")
    assert (code, "expectation 'no orders': 1 of 1 rows of silver.events break it" in err) == (1, True)
    assert "everything else is up to date" in err

    assert durabus("pipeline", "rebuild", "silver.events")[0] == "silver.events rebuilt from 3 rows\n"
    since = ("rebuild", "hourly_counters", "--since", "2033-01-01")
    assert told(*since) == {"rebuilt": "hourly_counters", "rows": 1}
    assert durabus("pipeline", "rollback", "silver.events")[0].startswith("silver.events is as it was at version ")
    code, _, err = ends("pipeline", "rollback", "silver.attempts")
    assert (code, "silver.attempts has had no rebuild that could be taken back" in err) == (1, True)

    await history.completed()
    assert told("trim", "--older-than", "0", "--force") == {"trimmed_entries": 6}
    code, _, err = ends("pipeline", "run", "archive", "--lake", "second")
    assert (code, "the store's log was trimmed before the lake" in err) == (1, True)
    await history.publish()
    told("run", "archive", "--lake", "second", "--accept-gap")
    told("run", "archive", "--lake", "third", "--rebuild-from", "lake")
    first, second, third = (told("status", "--lake", lake) for lake in ("lake", "second", "third"))
    assert [(one["archived"], one["behind"]) for one in (first, second, third)] == [(3, 1), (1, 0), (4, 0)]
    assert [(one["reason"], one["missing"]) for one in first["gaps"]] == [("forced trim", 3)]
    assert [(one["reason"], one["missing"]) for one in second["gaps"]] == [("trimmed before this lake began", None)]
    assert durabus("pipeline", "forget", second["lake_id"])[0] == f"lake {second['lake_id']} forgotten\n"
    code, _, err = ends("pipeline", "forget", second["lake_id"])
    assert (code, "follows this store; these do" in err) == (1, True)


async def test_follow_waits_for_the_interval_between_two_runs(
    durabus: Any, history: History, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await history.publish()
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise PipelineError("enough")

    monkeypatch.setattr("durabus.cli.pipeline.time", SimpleNamespace(sleep=wait))
    with ThreadPoolExecutor(1) as thread:
        code = thread.submit(main, ["pipeline", "run", "archive", "--follow", "--interval", "2.5"]).result()
    assert (code, waited) == (1, [2.5, 2.5])
    assert "enough" in capsys.readouterr().err
