"""The pipeline process of the demo, ``python -m durabus.demo.tables URL LAKE REPORT``: begins after a line on stdin."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from durabus.demo.pipeline import FAILED, STEP
from durabus.errors import DurabusError
from durabus.pipeline.lake import Lake, ask_sql
from durabus.pipeline.projections import hourly_counters
from durabus.pipeline.report import report
from durabus.pipeline.run import Pipeline, Silent
from durabus.pipeline.session import QUICK, SPARK_ERRORS, root_cause, spark_session

QUESTIONS = {
    "silver.events": (
        "SELECT type, count(*) AS events, count_if(status = 'COMPLETED') AS completed, "
        "count_if(failures > 0) AS retried, "
        "round(percentile(waiting_ms, 0.5)) AS `waits, p50 ms`, round(percentile(end_to_end_ms, 0.95)) AS `p95 ms` "
        "FROM silver.events GROUP BY type ORDER BY type"
    ),
    "silver.attempts": (
        "SELECT worker_id AS worker, count(*) AS attempts, count_if(outcome = 'COMPLETED') AS completed, "
        "count_if(outcome IN ('FAILED', 'COMPLETED_WITH_ERRORS')) AS failed, "
        "count_if(outcome = 'RELEASED') AS released, count_if(outcome = 'ABANDONED') AS abandoned "
        "FROM silver.attempts GROUP BY worker_id ORDER BY worker_id"
    ),
    "gold.dead_letters": (
        "SELECT fingerprint AS error, type, events FROM gold.dead_letters ORDER BY events DESC, fingerprint"
    ),
}
ROWS = 5
WIDTH = 96
JAVA = "spark.driver.extraJavaOptions"


class StepReporter(Silent):
    """Reports each step when it begins."""

    def begins(self, step: str, total: int | None) -> None:  # noqa: ARG002  (the demo shows the step alone)
        """See ``ProgressListener``."""
        print(f"{STEP}{step}", flush=True)


def small_table(lake: Lake, title: str) -> Table:
    """The result of a query for rich."""
    found = ask_sql(lake, QUESTIONS[title], limit=ROWS)
    made = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, show_edge=False)
    for number, column in enumerate(found.columns):
        made.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in found.rows:
        made.add_row(*(_cell(value) for value in row.values()))
    return made


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def main() -> None:
    """Start Spark, wait for a line, and run the pipeline. Without a line the demo has ended, so end too."""
    url, place, page = sys.argv[1:]
    # The process may be killed at any time, so Java also keeps its temporary files in the demo's folder.
    java = f'{QUICK[JAVA]} "-Djava.io.tmpdir={tempfile.gettempdir()}"'
    spark = spark_session(conf={**QUICK, JAVA: java})
    if not sys.stdin.readline():
        return
    lake, steps = Lake(spark, place), StepReporter()
    Pipeline(lake, url, [hourly_counters()], listener=steps).run()
    steps.begins("report", None)
    text = report(lake, made_at=datetime.now(UTC))  # clock: printed on the page
    Path(page).parent.mkdir(parents=True, exist_ok=True)
    Path(page).write_text(text, encoding="utf-8")
    console = Console(force_terminal=True, width=WIDTH, highlight=False)
    for title in QUESTIONS:
        console.print()
        console.print(small_table(lake, title))
    console.print(f"\nreport: {page}", soft_wrap=True, markup=False)


def why(error: Exception) -> str:
    """Why the pipeline failed, in one line."""
    if isinstance(error, OSError):
        return f"the report cannot be written: {error}"
    return root_cause(error) if isinstance(error, SPARK_ERRORS) else str(error)


if __name__ == "__main__":
    try:
        main()
    except (DurabusError, OSError, *SPARK_ERRORS) as error:
        print(f"{FAILED}{why(error)}", flush=True)
        sys.exit(1)
