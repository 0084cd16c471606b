"""The last part of the demo: the pipeline, in its own process, reads the store that the shop has used.

Spark takes seconds to start, so the process starts together with the workers and then waits for a line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.text import Text

from durabus.demo.processes import DemoProcess
from durabus.errors import PipelineError
from durabus.jars import cache_folder
from durabus.pipeline.jars import check_java

STEP, FAILED = "step: ", "failed: "
"""How a line begins that names the step that runs, or the error. All other lines are for the user."""


class PipelineProcess:
    """The pipeline process that waits for its task, or the reason why it cannot run. Without either it does nothing."""

    def __init__(self, process: DemoProcess | None = None, missing: str | None = None) -> None:
        self._process = process
        self._missing = missing

    async def run(self, console: Console) -> bool:
        """Run the pipeline, and print three tables and the path of the report. Returns False if it failed."""
        if self._process is not None:
            console.print("\n[bold]the same events, in tables[/]  the pipeline runs on Spark", soft_wrap=True)
            await self._follow(self._process, console)
        if self._missing is not None:
            console.print(f"\n✗ the pipeline failed: {self._missing}", style="bold red", soft_wrap=True, markup=False)
        return self._missing is None

    async def _follow(self, process: DemoProcess, console: Console) -> None:
        error = ""
        with console.status("Spark is starting") as status:
            await process.send("go")
            async for line in process.output:
                text = line.decode().rstrip("\n")
                if text.startswith(STEP):
                    status.update(text.removeprefix(STEP))
                elif text.startswith(FAILED):
                    error = text.removeprefix(FAILED)
                else:
                    console.print(Text.from_ansi(text), soft_wrap=True)
        code = await process.ended()
        if code:
            last = process.last_words().rpartition("\n")[2]
            self._missing = error or f"its process ended with code {code}" + (f": {last}" if last else "")


@asynccontextmanager
async def pipeline_process(folder: Path, url: str, *, wanted: bool, keep: bool) -> AsyncIterator[PipelineProcess]:
    """Start Spark in the background if ``wanted``. The process is killed at the end in any case."""
    missing = why_not() if wanted else None
    if missing is not None or not wanted:
        yield PipelineProcess(missing=missing)
        return
    scratch = folder / "spark"
    scratch.mkdir()
    # The user may want to look at the report later, so it must outlive the folder.
    report = folder / "report.html" if keep else cache_folder("demo-report.html")
    command = ("durabus.demo.tables", url, str(folder / "lake"), str(report))
    temporary = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    async with DemoProcess("the pipeline", command, log=folder / "pipeline.log", environment=temporary) as process:
        yield PipelineProcess(process)


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
