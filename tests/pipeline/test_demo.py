"""The demo's last act: three tables and a report, or one line that says why there are none."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from durabus.demo.pipeline import run_pipeline
from durabus.demo.run import DemoOptions, run_demo


@pytest.mark.long
@pytest.mark.processes
def test_the_demo_ends_with_three_tables_and_a_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "durabus.cli.main", "demo", "--orders", "60", "--pipeline", "--keep"]
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, told = done.stdout.split("the same events, in tables")
    assert re.findall(r"^(?:silver|gold)\.\w+", told, flags=re.MULTILINE) == [
        "silver.events",
        "silver.attempts",
        "gold.activity",
    ]
    assert re.search(r"^order\.placed +60 ", told, flags=re.MULTILINE)
    (report,) = re.findall(r"^report: (.+)$", told, flags=re.MULTILINE)
    assert Path(report).is_relative_to(tmp_path)
    assert "What the bus did" in Path(report).read_text(encoding="utf-8")


async def test_without_java_the_demo_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = io.StringIO()
    assert not await run_pipeline(tmp_path, "sqlite:///nowhere.db", Console(file=out, width=100), keep=False)
    assert out.getvalue().strip().startswith("✗ the pipeline failed: no Java found: Spark needs Java 17 or newer")
    assert len(out.getvalue().strip().splitlines()) == 1
    assert os.listdir(tmp_path) == []  # noqa: PTH208  (blocking, and meant)


async def test_a_pipeline_that_ends_by_itself_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens if memory is short and the system kills Java."""
    monkeypatch.setattr("durabus.demo.processes.sys.executable", "/bin/false")
    out = io.StringIO()
    assert not await run_pipeline(tmp_path, "sqlite:///nowhere.db", Console(file=out, width=100), keep=False)
    assert "✗ the pipeline failed: its process ended with code 1" in out.getvalue()


@pytest.mark.processes
async def test_a_demo_without_the_pipeline_option_prints_nothing_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert await run_demo(DemoOptions(orders=1)) == 0
    assert "pipeline" not in capsys.readouterr().out
    assert os.listdir(tmp_path) == []  # noqa: PTH208  (blocking, and meant)
