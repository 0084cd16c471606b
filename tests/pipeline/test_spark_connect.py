"""The pipeline as a client of Spark Connect: no Java in its own process."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from durabus.pipeline.jars import class_path
from durabus.pipeline.session import CONF, QUICK

ROOT = Path(__file__).resolve().parents[2]
START_WITHIN = 180.0
READY = re.compile(r"Spark Connect server started at: \S+?:(\d+)")

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server with the settings of the pipeline, as ``docs/reference/pipeline.md`` starts it."""
    settings = {
        **CONF,
        **QUICK,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    service = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*submit, "--driver-class-path", class_path(), *words, *service],
            cwd=tmp_path,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + START_WITHIN
        while (found := READY.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()[-2_000:]
            assert time.monotonic() < until, log.read_text()[-2_000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait(60)


def test_a_client_of_spark_connect_runs_the_pipeline(tmp_path: Path, url: str, server: str) -> None:
    place = str(tmp_path / "lake")
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.connected", server, url, place],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(tmp_path / "no-java")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    first, entries = found["entries"]
    assert 0 < first < entries
    assert found["holds"] == [True, True]
    rows = found["rows"]
    assert (rows["bronze.event_log"], rows["silver.events"]) == (entries, 14)
