"""The last part of the demo: the pipeline, in its own process, reads the store that the shop has used.

Spark takes seconds to start, so the process starts together with the workers and then waits for its task.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

from durabus.errors import PipelineError
from durabus.pipeline.jars import cache_folder, check_java

LARGEST_LINE = 1 << 20
LOG = "pipeline.log"
"""The file in the demo's folder with the output of Java and the process."""


class PipelineTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of the process, sent as one line."""

    url: str
    lake: str
    report: str


class SmallTable(msgspec.Struct, frozen=True, kw_only=True):
    """A small table to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class PipelineNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line that the process prints: the step that begins, or at the end the tables or the error."""

    step: str | None = None
    tables: list[SmallTable] = []
    error: str | None = None


class PipelineProcess:
    """The pipeline process that waits for its task, or the reason why it cannot run. Without either it does nothing."""

    def __init__(self, folder: Path, *, keep: bool, process: Process | None = None, missing: str | None = None) -> None:
        self._lake = folder / "lake"
        self._log = folder / LOG
        # The user may want to look at the report later, so it must outlive the folder.
        self._report = folder / "report.html" if keep else cache_folder("demo-report.html")
        self._process = process
        self._missing = missing

    async def run(self, url: str, console: Console) -> bool:
        """Run the pipeline, and print three tables and the path of the report. Returns False if it failed."""
        if self._process is not None:
            console.print("\n[bold]the same events, in tables[/]  the pipeline runs on Spark", soft_wrap=True)
            task = PipelineTask(url=url, lake=str(self._lake), report=str(self._report))
            with console.status("Spark is starting") as status:
                news = await self._news(self._process, task, status)
            for table in news.tables:
                console.print()
                console.print(drawn(table))
            if news.error is None:
                console.print(f"\nreport: {self._report}", soft_wrap=True, markup=False)
                return True
            self._missing = news.error
        if self._missing is None:
            return True
        console.print(f"\n✗ the pipeline failed: {self._missing}", style="bold red", soft_wrap=True, markup=False)
        return False

    async def _news(self, process: Process, task: PipelineTask, status: Status) -> PipelineNews:
        assert process.stdin is not None  # noqa: S101  (they are pipes)
        assert process.stdout is not None  # noqa: S101
        with suppress(ConnectionError):  # if the process has ended, its last line or its log says why
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            await process.stdin.drain()
        async for line in process.stdout:
            news = msgspec.json.decode(line, type=PipelineNews)
            if news.step is None:
                return news
            status.update(news.step)
        return PipelineNews(error=f"its process ended with code {await process.wait()}{self._last_words()}")

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""


@asynccontextmanager
async def pipeline_process(folder: Path, *, wanted: bool, keep: bool) -> AsyncIterator[PipelineProcess]:
    """Start Spark in the background if ``wanted``. The process is killed at the end in any case."""
    missing = why_not() if wanted else None
    if missing is not None or not wanted:
        yield PipelineProcess(folder, keep=keep, missing=missing)
        return
    scratch = folder / "spark"
    scratch.mkdir()
    with (folder / LOG).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "durabus.demo.tables"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env={**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)},
            limit=LARGEST_LINE,
            start_new_session=True,
        )
    try:
        yield PipelineProcess(folder, keep=keep, process=process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also ends Java
        await process.wait()


def why_not() -> str | None:
    """Why the pipeline cannot run on this machine, in one line; None if it can."""
    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} cannot be found: pip install 'durabus[cli,spark]'"
    try:
        check_java()
    except PipelineError as error:
        return str(error)
    return None


def drawn(table: SmallTable) -> Table:
    """The table for rich."""
    made = Table(title=table.title, title_justify="left", box=box.SIMPLE, pad_edge=False, show_edge=False)
    for number, column in enumerate(table.columns):
        made.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*row)
    return made
