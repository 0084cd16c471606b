"""kill -9 at random points while eight processes write: bronze is the log, silver is what a rebuild gives."""

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

from durabus import open_store
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver, update_silver
from durabus.pipeline.gate import fingerprint
from durabus.pipeline.lake import Lake

KILLS = int(os.environ.get("DURABUS_PIPELINE_KILLS", "2"))
"""Two in every run of the suite; ``DURABUS_PIPELINE_KILLS=20`` for the long proof."""
WRITERS = 8
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


def archiver(url: str, lake: Lake, *once: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pipeline.archiver", url, lake.path, *once]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


async def test_every_entry_is_archived_once_whenever_the_archiver_dies(
    url: str,
    lake: Lake,
    writers: list[subprocess.Popen[bytes]],
    content: Callable[[DataFrame], tuple[int, int]],
) -> None:
    rnd = random.Random(KILLS)
    for _ in range(KILLS):
        process = archiver(url, lake)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        await asyncio.sleep(rnd.uniform(0.0, 12.0))
        assert process.poll() is None, "it ended by itself"
        if rnd.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)  # Java too
        else:
            process.kill()  # Java is left behind, with a commit on its way perhaps
        process.wait()
        process.stdout.close()
    assert all(writer.poll() is None for writer in writers)
    for writer in writers:
        writer.kill()
        writer.wait()
    last = archiver(url, lake, "once")
    assert last.wait() == 0
    assert last.stdout is not None
    last.stdout.close()

    store = await open_store(url)
    total = await store.log_lag("")
    await store.close()
    bronze = lake.read("bronze.event_log")
    log = lake.spark.read.format("durabus").option("url", url).load()
    assert bronze.count() == bronze.select("position").distinct().count() == total
    assert fingerprint(bronze) == fingerprint(log)
    in_order = [row["position"] for row in bronze.orderBy("seq").select("position").collect()]
    assert in_order == [row["position"] for row in log.orderBy("ordinal").select("position").collect()]
    for name in TRANSFORMS:
        update_silver(lake, name)
        kept = content(lake.read(name))
        rebuild_silver(lake, name)
        assert content(lake.read(name)) == kept
