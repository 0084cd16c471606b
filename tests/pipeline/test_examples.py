"""The examples of the pipeline, as a reader would start them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from tests.pipeline.notebook import Notebook

from durabus import EventQueue, open_store
from durabus.pipeline.jars import class_path
from durabus.pipeline.session import QUICK

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_notebook_prints_what_it_shows(notebook: Notebook) -> None:
    assert notebook.printed == [
        "log entries: 12",
        "ada: 2 orders, 15",
        "grace: 1 orders, 25",
        "COMPLETED: 3",
        "FAILED: 1",
    ]


def test_a_run_opens_its_store_once(notebook: Notebook) -> None:
    assert notebook.opened == 2  # the shop, and the run


@pytest.mark.parametrize("part", ["archive", pytest.param("all", marks=pytest.mark.long)])
def test_the_job_runs_by_spark_submit(tmp_path: Path, url: str, part: str) -> None:
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
    job = [str(EXAMPLES / "pipeline_submit.py"), url, str(tmp_path / "lake"), part]
    quick = [word for name, value in QUICK.items() for word in ("--conf", f"{name}={value}")]
    options = ["--master", "local[2]", "--driver-class-path", class_path(), *quick]
    done = subprocess.run(
        [str(submit), *options, *job],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["COMPLETED: 1", "PICKED: 1", "PUBLISHED: 3"]
    assert (tmp_path / "lake" / "gold").exists() is (part == "all")


@pytest.mark.processes
@pytest.mark.parametrize("part", ["archive", pytest.param("all", marks=pytest.mark.long)])
def test_one_command_runs_on_a_standalone_cluster(tmp_path: Path, part: str) -> None:
    """A master and two workers are started. Both workers have an executor, which needs Delta's jars and durabus."""
    executor = QUICK["spark.driver.extraJavaOptions"]
    quick = {**QUICK, "spark.executor.extraJavaOptions": executor}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in quick.items()))
    done = subprocess.run(
        [sys.executable, EXAMPLES / "pipeline_cluster.py", part],
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_DAEMON_JAVA_OPTS": executor},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["a cluster with two workers: spark://127.0.0.1:PORT", "executors: 2"]
    assert lines[-1].split() == ["order.placed", "PUBLISHED", "12000"]
