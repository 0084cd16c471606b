"""kill -9 at random points while eight processes write: bronze is the log, and the rest is what a rebuild gives."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from tests.pipeline.runner import SHIPPED

from durabus import EventQuery, EventStore, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver, update_silver
from durabus.pipeline.gate import fingerprint
from durabus.pipeline.lake import Lake
from durabus.pipeline.project import rebuild_projection
from durabus.pipeline.replay import Choice, Replayed, chosen, replay
from durabus.pipeline.run import Part, Pipeline

KILLS = int(os.environ.get("DURABUS_PIPELINE_KILLS", "2"))
"""Two in every run of the suite; ``make chaos-pipeline`` kills twenty times."""
REPLAY_KILLS = max(1, KILLS // 5)
WRITERS = 8
STEPS = 3 + len(TRANSFORMS) + len(SHIPPED)
"""Of one run: archive, quarantine and verify, silver, projections."""
REPLAYED = 12_000
RATE = 2_000
"""Six seconds for all of them, in parts of 500: time enough to die in one."""
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900 + 120 * KILLS)]


@pytest.fixture
def writers(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.pipeline.writer", url]
    running = [subprocess.Popen([*command, str(seed)], cwd=ROOT) for seed in range(WRITERS)]
    yield running
    for one in running:
        one.kill()
        one.wait()


@contextmanager
def victim(lake: Lake, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own group, because it starts Java: in the end all of it is killed. Its scratch stays here."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_DIRS": f"{lake.path}-scratch"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[str]) -> list[str]:
    """What it had said and nobody had read."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    if process.stdout.closed:
        return []
    with process.stdout:
        return process.stdout.readlines()


async def run_until_killed(url: str, lake: Lake, rnd: random.Random) -> str:
    """At any of the steps of a run, and at any moment of that step. Answers the step it died in."""
    with victim(lake, "tests.pipeline.runner", url, lake.path) as process:
        assert process.stdout is not None
        for _ in range(rnd.randint(1, STEPS)):
            step = await asyncio.to_thread(process.stdout.readline)
            assert step, "it ended by itself"
        await asyncio.sleep(rnd.uniform(0.0, 3.0))
        assert process.poll() is None, "it ended by itself"
        if rnd.random() < 0.5:
            process.kill()  # Java is left behind, with a commit on its way perhaps
            await asyncio.sleep(rnd.uniform(0.0, 1.0))
        return [step, *kill_group(process)][-1].strip()


async def test_nothing_is_lost_or_doubled_whenever_the_pipeline_dies(
    url: str,
    lake: Lake,
    writers: list[subprocess.Popen[bytes]],
    content: Callable[[DataFrame], tuple[int, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    rnd = random.Random(KILLS)
    died_in = Counter([await run_until_killed(url, lake, rnd) for _ in range(KILLS)])
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
    rows = {}
    for name in TRANSFORMS:
        kept = content(lake.read(name))
        rebuild_silver(lake, name)
        assert content(lake.read(name)) == kept
        rows[name] = kept[0]
    for projection in SHIPPED:
        kept = content(lake.read(projection.table))
        rebuild_projection(lake, projection)
        assert content(lake.read(projection.table)) == kept
        rows[projection.table] = kept[0]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{KILLS} kills, in {dict(died_in)}\n"
            f"{total:,} log entries by {WRITERS} writers, each once and in order, in {batches(lake)} batches\n"
            f"as a rebuild gives them: {rows}\n"
        )


def batches(lake: Lake) -> int:
    """Commits of ``bronze.event_log`` that brought rows."""
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.location('bronze.event_log')}`")
    return history.where("operation = 'WRITE'").count()


async def test_a_replay_that_is_killed_goes_on_without_doubles(
    url: str, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    rnd = random.Random(KILLS)
    store = await open_store(url)
    await complete_many(store)
    Archive(lake, url).run()
    update_silver(lake, "silver.events")
    known = [0]
    for _ in range(REPLAY_KILLS):
        await replay_until_killed(url, lake, store, rnd)
        known.append((await store.counts()).pending)
    assert known == sorted(set(known)), "each run came further"
    assert known[-1] < REPLAYED
    found = chosen(lake.read("silver.events"), Choice())
    done = await replay(found, store, replay_id="again")
    assert done == Replayed(published=REPLAYED - known[-1], known=known[-1])

    originals: set[str] = set()
    copies: Counter[str] = Counter()
    page = await store.find(EventQuery(limit=1_000))
    while True:
        for event in page.events:
            if "durabus_replay_of" in event.metadata:
                copies[event.metadata["durabus_replay_of"]] += 1
            else:
                originals.add(event.event_id)
        if page.next_before_id is None:
            break
        page = await store.find(EventQuery(limit=1_000, before_id=page.next_before_id))
    await store.close()
    assert len(originals) == REPLAYED
    assert copies == Counter(originals)
    with capsys.disabled():
        told = f"{REPLAY_KILLS} kills of a replay, after {known[1:]} of {REPLAYED:,} events; each published once"
        sys.stdout.write(f"\n{told}\n")


async def complete_many(store: EventStore) -> None:
    for _ in range(0, REPLAYED, 1_000):
        await store.add_events([new_event("order.placed", {"order": number}) for number in range(1_000)])
        request = ClaimRequest(bus="default", worker_id="host:1", token=new_token(), limit=1_000)
        await store.settle_events([Complete(claim.ref) for claim in await store.claim_next_events(request)])


async def replay_until_killed(url: str, lake: Lake, store: EventStore, rnd: random.Random) -> None:
    """As typed; dead soon after it has published something, which may be in the middle of more."""
    before = (await store.counts()).pending
    options = ["--id", "again", "--rate", str(RATE), "--lake", lake.path, "--store", url]
    with victim(lake, "durabus.cli.main", "pipeline", "replay", *options) as process:
        while (await store.counts()).pending == before:
            assert process.poll() is None, "it ended by itself"
            await asyncio.sleep(0.005)
        await asyncio.sleep(rnd.uniform(0.0, 0.6))
        assert process.poll() is None, "it ended by itself"
