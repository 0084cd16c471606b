"""kill -9 at random points while eight processes write: bronze is the log, and the rest is what a rebuild gives."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from tests.pipeline.runner import SHIPPED

from durabus import open_store
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver
from durabus.pipeline.gate import fingerprint
from durabus.pipeline.lake import Lake
from durabus.pipeline.project import rebuild_projection
from durabus.pipeline.run import Part, Pipeline

KILLS = int(os.environ.get("DURABUS_PIPELINE_KILLS", "2"))
"""Two in every run of the suite; ``make chaos-pipeline`` kills twenty times."""
WRITERS = 8
STEPS = 3 + len(TRANSFORMS) + len(SHIPPED)
"""Of one run: archive, quarantine and verify, silver, projections."""
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900 + 120 * KILLS)]


@pytest.fixture
def writers(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.pipeline.writer", url]
    running = [subprocess.Popen([*command, str(seed)], cwd=ROOT) for seed in range(WRITERS)]
    yield running
    for one in running:
        one.kill()
        one.wait()


async def run_until_killed(url: str, lake: Lake, rnd: random.Random) -> None:
    """At any of the steps of a run, and at any moment of that step."""
    process = subprocess.Popen(  # noqa: ASYNC220  (it returns at once, and is killed by its group)
        [sys.executable, "-m", "tests.pipeline.runner", url, lake.path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for _ in range(rnd.randint(1, STEPS)):
            assert await asyncio.to_thread(process.stdout.readline), "it ended by itself"
        await asyncio.sleep(rnd.uniform(0.0, 3.0))
        assert process.poll() is None, "it ended by itself"
        if rnd.random() < 0.5:
            process.kill()  # Java is left behind, with a commit on its way perhaps
            process.wait()
            await asyncio.sleep(rnd.uniform(0.0, 1.0))
    finally:
        process.kill()
        process.wait()
        kill_group(process.pid)
        process.stdout.close()


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


async def test_nothing_is_lost_or_doubled_whenever_the_pipeline_dies(
    url: str,
    lake: Lake,
    writers: list[subprocess.Popen[bytes]],
    content: Callable[[DataFrame], tuple[int, int]],
) -> None:
    rnd = random.Random(KILLS)
    for _ in range(KILLS):
        await run_until_killed(url, lake, rnd)
    assert all(writer.poll() is None for writer in writers)
    for writer in writers:
        writer.kill()
        writer.wait()
    pipeline = Pipeline(lake, url, SHIPPED)
    pipeline.run(Part.ARCHIVE)
    pipeline.run(Part.PROJECT)

    store = await open_store(url)
    total = await store.log_lag("")
    await store.close()
    bronze = lake.read("bronze.event_log")
    log = lake.spark.read.format("durabus").option("url", url).load()
    assert bronze.count() == bronze.select("position").distinct().count() == total > 100 * KILLS
    assert fingerprint(bronze) == fingerprint(log)
    in_order = [tuple(row) for row in bronze.orderBy("seq").select("seq", "id", "action", "position").collect()]
    assert in_order == [
        tuple(row) for row in log.orderBy("ordinal").select("ordinal", "id", "action", "position").collect()
    ]
    for name in TRANSFORMS:
        kept = content(lake.read(name))
        rebuild_silver(lake, name)
        assert content(lake.read(name)) == kept
    for projection in SHIPPED:
        kept = content(lake.read(projection.table))
        rebuild_projection(lake, projection)
        assert content(lake.read(projection.table)) == kept
