"""The pipeline process of the demo, ``python -m durabus.demo.tables``: reads its task from stdin, reports on stdout."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from durabus.demo.pipeline import PipelineNews, PipelineTask, SmallTable
from durabus.errors import DurabusError
from durabus.pipeline.lake import Lake
from durabus.pipeline.log_reader import ask_sql
from durabus.pipeline.projections import hourly_counters
from durabus.pipeline.report import report
from durabus.pipeline.run import Pipeline
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
JAVA = "spark.driver.extraJavaOptions"


class StepReporter:
    """Reports each step when it begins."""

    def begins(self, step: str, total: int | None) -> None:  # noqa: ARG002  (the demo shows the step alone)
        """See ``Listener``."""
        tell(PipelineNews(step=step))

    def moves(self, rows: int) -> None:
        """See ``Listener``."""

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """See ``Listener``."""


def tell(news: PipelineNews) -> None:
    """Print one line of JSON."""
    sys.stdout.write(msgspec.json.encode(news).decode() + "\n")
    sys.stdout.flush()


def small_table(lake: Lake, title: str) -> SmallTable:
    """The result of a query, as text."""
    found = ask_sql(lake, QUESTIONS[title], limit=ROWS)
    return SmallTable(title=title, columns=found.columns, rows=[[shown(v) for v in row.values()] for row in found.rows])


def shown(value: object) -> str:
    """A value as the text of a cell."""
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def main() -> int:
    """Start Spark, wait for the task and run it. Without a task the demo has ended, so end too."""
    try:
        # The process may be killed at any time, so Java also keeps its temporary files in the demo's folder.
        java = f'{QUICK[JAVA]} "-Djava.io.tmpdir={tempfile.gettempdir()}"'
        spark = spark_session(conf={**QUICK, JAVA: java})
        line = sys.stdin.readline()
        if not line:
            return 1
        task = msgspec.json.decode(line, type=PipelineTask)
        lake = Lake(spark, task.lake)
        Pipeline(lake, task.url, [hourly_counters()], listener=StepReporter()).run()
        tell(PipelineNews(step="report"))
        page = report(lake, made_at=datetime.now(UTC))  # clock: printed on the page
        Path(task.report).parent.mkdir(parents=True, exist_ok=True)
        Path(task.report).write_text(page, encoding="utf-8")
        tell(PipelineNews(tables=[small_table(lake, title) for title in QUESTIONS]))
    except DurabusError as error:
        tell(PipelineNews(error=str(error)))
        return 1
    except SPARK_ERRORS as error:
        tell(PipelineNews(error=root_cause(error)))
        return 1
    except OSError as error:
        tell(PipelineNews(error=f"the report cannot be written: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
