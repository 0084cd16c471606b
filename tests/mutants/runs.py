"""Runs of single tests against a copy of the source, each in a process of its own that begins with pytest loaded."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.mutants.copies import ROOT

PLUGINS = ("anyio.pytest_plugin", "pytest_timeout", "_hypothesis_pytestplugin")
PRELOADED = (
    "anyio._backends._asyncio",
    "asyncpg",
    "hypothesis",
    "hypothesis.internal.conjecture.engine",
    "msgspec",
    "opentelemetry.trace",
    "psycopg",
    "sqlite3",
    "uuid_utils",
    "xdist.scheduler",
)
"""What every run would import again otherwise. durabus itself is not among them: each run has its own."""
LIMIT = 240.0
"""Seconds for one run."""


class Run(NamedTuple):
    """One run under way."""

    pid: int
    report: Path
    output: Path
    began: float


class Report(NamedTuple):
    """What came out of a run."""

    failed: tuple[str, ...]
    """Tests whose own lines failed. A test whose fixture broke proves nothing."""
    broken: tuple[str, ...]
    passed: tuple[str, ...]
    trouble: str
    """Why there is no verdict; empty if there is one."""

    def killed(self, test: str) -> bool:
        return any(_is_case_of(case, test) for case in self.failed)

    def held(self, test: str) -> bool:
        """Whether all cases of the test passed, and there were some."""
        others = (*self.failed, *self.broken)
        return any(_is_case_of(c, test) for c in self.passed) and not any(_is_case_of(c, test) for c in others)


def _is_case_of(case: str, test: str) -> bool:
    return case == test or case.startswith(f"{test}[")


def preload() -> None:
    """Import what the runs share. Packages that are not installed are left out: the runs report them."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def begin(source: Path, tests: Iterable[str], folder: Path, *, stop_early: bool) -> Run:
    """Start the tests in a forked process that imports durabus from ``source``."""
    folder.mkdir(parents=True, exist_ok=True)
    report, output = folder / "report.json", folder / "output.txt"
    report.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(source, [*tests], report, output, stop_early=stop_early)
    return Run(pid, report, output, time.monotonic())


def ended(run: Run) -> bool:
    """Whether the run is over. One that takes too long is killed, with everything it started."""
    pid, _ = os.waitpid(run.pid, os.WNOHANG)
    if pid:
        return True
    if time.monotonic() - run.began > LIMIT:
        stop(run)
        return True
    return False


def stop(run: Run) -> None:
    """Kill a run and the servers that it started."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    os.waitpid(run.pid, 0)


def report_of(run: Run) -> Report:
    """Return the result of an ended run."""
    if not run.report.exists():
        return Report((), (), (), "the run ended without a report")
    told = json.loads(run.report.read_text())
    trouble = "" if told["code"] in (0, 1) else f"pytest ended with code {told['code']}"
    return Report(tuple(told["failed"]), tuple(told["broken"]), tuple(told["passed"]), told["trouble"] or trouble)


class _Notes:
    """A pytest plugin that notes what became of each test."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.broken: list[str] = []
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            (self.failed if report.when == "call" else self.broken).append(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid)


def _run_and_exit(source: Path, tests: list[str], report: Path, output: Path, *, stop_early: bool) -> None:
    """Run pytest in the forked process, and never return."""
    try:
        os.setpgid(0, 0)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(source)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.path.insert(0, str(source))
        report.write_text(json.dumps(_run(source, tests, stop_early=stop_early)))
    except BaseException:  # noqa: BLE001  (nothing of the parent's may run on in the child)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _run(source: Path, tests: list[str], *, stop_early: bool) -> dict[str, Any]:
    notes = _Notes()
    options = ["-q", "-p", "no:cacheprovider", "--timeout=45", f"--rootdir={ROOT}"]
    options += [option for plugin in PLUGINS for option in ("-p", plugin)]
    code = pytest.main([*options, *(["-x"] if stop_early else []), *tests], plugins=[notes])
    used = Path(sys.modules["durabus"].__file__ or "") if "durabus" in sys.modules else None
    trouble = "" if used is not None and used.is_relative_to(source) else f"durabus was imported from {used}"
    return {
        "code": int(code),
        "failed": notes.failed,
        "broken": notes.broken,
        "passed": notes.passed,
        "trouble": trouble,
    }
