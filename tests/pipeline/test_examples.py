"""The examples of the pipeline, as a reader would start them."""

import asyncio
import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from durabus import EventQueue, open_store
from durabus.pipeline.jars import class_path
from durabus.pipeline.session import QUICK

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


pytestmark = pytest.mark.long


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_notebook_prints_what_it_shows(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """On the session of all tests, as a notebook's cells share one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(runpy.run_path, str(EXAMPLES / "pipeline_notebook.py"), run_name="__main__").result()
    assert capsys.readouterr().out.splitlines() == [
        "log entries: 12",
        "ada: 2 orders, 15",
        "grace: 1 orders, 25",
        "COMPLETED: 3",
        "FAILED: 1",
    ]


def test_the_job_runs_by_spark_submit(tmp_path: Path, url: str) -> None:
    async def publish() -> None:
        store = await open_store(url)
        queue = EventQueue(store)
        for number in range(3):
            await queue.publish("order.placed", {"order": number})
        event = await queue.poll()
        assert event is not None
        await queue.finalize(event.id)
        await store.close()

    asyncio.run(publish())
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    job = [str(EXAMPLES / "pipeline_submit.py"), url, str(tmp_path / "lake")]
    quick = [word for name, value in QUICK.items() for word in ("--conf", f"{name}={value}")]
    options = ["--master", "local[2]", "--driver-class-path", class_path(), *quick]
    assert run([str(submit), *options, *job], tmp_path).splitlines() == ["COMPLETED: 1", "PENDING: 2"]
