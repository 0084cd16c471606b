"""The last part of the demo: ``durabus pipeline`` commands make tables and a page of what the shop has done."""

from __future__ import annotations

import runpy
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from durabus.demo.processes import started
from durabus.errors import PipelineError
from durabus.jars import cache_folder
from durabus.pipeline.jars import check_java

QUERIES = {
    "silver.events": """
        SELECT type, count(*) AS events, count_if(status = 'COMPLETED') AS completed, count_if(failures > 0) AS retried,
            int(percentile(waiting_ms, 0.5)) AS `waits, p50 ms`, int(percentile(end_to_end_ms, 0.95)) AS `p95 ms`
        FROM silver.events GROUP BY type ORDER BY type""",
    "silver.attempts": """
        SELECT worker_id AS worker, count(*) AS attempts, count_if(outcome = 'COMPLETED') AS completed,
            count_if(outcome IN ('FAILED', 'COMPLETED_WITH_ERRORS')) AS failed,
            count_if(outcome = 'RELEASED') AS released, count_if(outcome = 'ABANDONED') AS abandoned
        FROM silver.attempts GROUP BY worker_id ORDER BY worker_id""",
    "gold.activity": """
        SELECT name AS error, type, sum(dead) AS events FROM gold.activity
        WHERE step = 'day' AND facet = 'error' AND dead > 0 GROUP BY ALL ORDER BY events DESC, error""",
}
JAVA = "spark.driver.extraJavaOptions"


async def run_pipeline(folder: Path, url: str, console: Console, *, keep: bool) -> bool:
    """Let a process print three tables and the path of the page. Returns False if it failed."""
    problem = ""
    try:
        check_java()
    except PipelineError as error:
        problem = str(error)
    else:
        console.print("\n[bold]the same events, in tables[/]  the pipeline runs on Spark", soft_wrap=True)
        # The user may want to look at the page later, so it must outlive the folder.
        page = folder / "report.html" if keep else cache_folder("demo-report.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        scratch = folder / "spark"
        scratch.mkdir()
        places = {"DURABUS_STORE": url, "DURABUS_LAKE": str(folder / "lake")}
        temporary = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        output = sys.stderr if console.stderr else None
        async with started(__name__, str(page), out=output, environment=places | temporary) as process:
            if code := await process.wait():
                problem = f"its process ended with code {code}"
    if problem:
        console.print(f"\n✗ the pipeline failed: {problem}", style="bold red", soft_wrap=True, markup=False)
    return not problem


def main(page: str) -> int:
    """Start Spark once, and run all commands on it until one fails. Returns the exit code of the last."""
    from durabus.pipeline.session import QUICK, spark_session  # noqa: PLC0415  (only this process needs Spark)

    print("starting Spark …", file=sys.stderr, flush=True)
    # The process may be killed at any time, so Java also keeps its temporary files in the demo's folder.
    folder = tempfile.gettempdir()
    settings = {**QUICK, JAVA: f'{QUICK[JAVA]} "-Djava.io.tmpdir={folder}"'}
    with suppress(PipelineError):  # the first command starts Spark again, and says why it cannot
        spark_session(conf=settings, messages=Path(folder, "spark.log"))
    durabus = runpy.run_module("durabus.cli.main")["main"]
    tables = [(f"\n{title}\n", "sql", query) for title, query in QUERIES.items()]
    for title, *command in (("", "run"), *tables, ("\nreport: ", "report", "--out", page)):
        print(title, end="", flush=True)
        if code := int(durabus(["pipeline", *command])):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
