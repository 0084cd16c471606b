"""kill -9 at random points while eight processes write: bronze is the log, and the rest is what a rebuild gives."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from pyspark.sql import DataFrame
from tests.pipeline.runner import SHIPPED

from durabus import EventQuery, EventStore, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import TRANSFORMS, update_silver
from durabus.pipeline.lake import Lake
from durabus.pipeline.projecting import all_rows, rebuild_projection
from durabus.pipeline.replay import Choice, Replayed, chosen, replay
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import fingerprints

KILLS = int(os.environ.get("DURABUS_PIPELINE_KILLS", "2"))
"""The number of kills: one in ``make test``, two in ``make long``, twenty in ``make chaos-pipeline``."""
REPLAY_KILLS = max(1, KILLS // 5)
WRITERS = 8
FEW_WRITERS = 2
"""The number of writers beside a single kill: other tests run at the same time."""
STEPS = 3 + len(TRANSFORMS) + len(SHIPPED)
"""The steps of one run: archive, quarantine and verify, silver, projections."""
REPLAYED = 3_000 * (1 + REPLAY_KILLS)
RATE = 500
"""One part each second, so that a replay is far from its end when it is killed."""
START_QUICKLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for a process that lives for seconds."""
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900 + 120 * KILLS)]

Tell = Callable[[str], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Print a line at once, past the capture of pytest: twenty kills take a quarter of an hour."""
    started = time.monotonic()

    def tell(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{time.monotonic() - started:5.0f} s  {text}")
            sys.stdout.flush()

    return tell


@dataclass(frozen=True)
class Campaign:
    """How often the pipeline is killed, and the store that it reads."""

    kills: int
    url: str


LONG = [pytest.param((store, KILLS), marks=pytest.mark.long) for store in ("sqlite", "postgresql")]


@pytest.fixture(params=[("sqlite", 1), *LONG], ids=["once", "often", "often while writers commit late"])
def campaign(request: pytest.FixtureRequest) -> Campaign:
    store, kills = request.param
    return Campaign(kills, request.getfixturevalue("url" if store == "sqlite" else "postgresql_database"))


@pytest.fixture
def writers(campaign: Campaign) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.pipeline.writer", campaign.url]
    number = FEW_WRITERS if campaign.kills == 1 else WRITERS
    running = [subprocess.Popen([*command, str(seed)], cwd=ROOT) for seed in range(number)]
    yield running
    for one in running:
        one.kill()
        one.wait()


class Victim:
    """A process in a group of its own, because it starts Java. Its scratch files and output stay beside the lake."""

    def __init__(self, lake: Lake, *arguments: str) -> None:
        self._log = Path(f"{lake.path}-victim.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, "SPARK_LOCAL_DIRS": f"{lake.path}-scratch", "JAVA_TOOL_OPTIONS": START_QUICKLY},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._out = self._process.stdout

    async def says(self) -> str:
        line = await asyncio.to_thread(self._out.readline)
        if not line:
            self._process.wait()
        self.must_live()
        return line

    def must_live(self) -> None:
        code = self._process.poll()
        assert code is None, f"it ended by itself, with {code}: {self._log.read_text()[-2_000:]}"

    def kill_without_java(self) -> None:
        self._process.kill()

    def kill(self) -> list[str]:
        """Kill the whole group. Returns the output that the test has not read yet."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._out.closed:
            return []
        with self._out:
            return self._out.readlines()


@contextmanager
def victim(lake: Lake, *arguments: str) -> Iterator[Victim]:
    started = Victim(lake, *arguments)
    try:
        yield started
    finally:
        started.kill()


async def run_until_killed(url: str, lake: Lake, rnd: random.Random) -> str:
    """Kill a run in any of its steps, and at any moment of that step. Returns the step."""
    with victim(lake, "tests.pipeline.runner", url, lake.path) as process:
        for _ in range(rnd.randint(1, STEPS)):
            step = await process.says()
        await asyncio.sleep(rnd.uniform(0.0, 3.0))
        process.must_live()
        if rnd.random() < 0.5:
            process.kill_without_java()  # it is left behind, with a commit on its way perhaps
            await asyncio.sleep(rnd.uniform(0.0, 1.0))
        return [step, *process.kill()][-1].strip()


async def test_nothing_is_lost_or_doubled_whenever_the_pipeline_dies(
    lake: Lake,
    *,
    campaign: Campaign,
    writers: list[subprocess.Popen[bytes]],
    content: Callable[[DataFrame], tuple[int, int]],
    tell: Tell,
) -> None:
    url, kills = campaign.url, campaign.kills
    rnd = random.Random(kills)
    died_in: Counter[str] = Counter()
    for number in range(kills):
        step = await run_until_killed(url, lake, rnd)
        died_in[step] += 1
        tell(
            f"kill {number + 1} of {kills} in {step}, {lake.value('bronze.event_log', 'count(*)') or 0:,} rows archived"
        )
    assert all(writer.poll() is None for writer in writers)
    for writer in writers:
        writer.kill()
        writer.wait()
    await last_transaction_ends(url)
    pipeline = Pipeline(lake, url, SHIPPED)
    pipeline.run(PipelinePart.ARCHIVE)
    pipeline.run(PipelinePart.PROJECT)

    store = await open_store(url)
    total = await store.log_lag("")
    await store.close()
    bronze = lake.read("bronze.event_log")
    log = lake.spark.read.format("durabus").option("url", url).load()
    in_order = [tuple(row) for row in bronze.orderBy("seq").select("seq", "id", "action", "position").collect()]
    assert len(in_order) == len({position for *_, position in in_order}) == total > 100 * kills
    of_lake, of_store = fingerprints(bronze, log)
    assert of_lake == of_store
    assert in_order == [
        tuple(row) for row in log.orderBy("ordinal").select("ordinal", "id", "action", "position").collect()
    ]
    kept = {}
    for name, rebuilt in what_a_rebuild_writes(lake):
        kept[name] = content(lake.read(name))
        assert content(rebuilt) == kept[name]
    rebuild_projection(lake, SHIPPED[0])
    assert content(lake.read(SHIPPED[0].table)) == kept[SHIPPED[0].table], "swapped in over the table that was there"
    tell(f"{kills} kills, in {dict(died_in)}")
    tell(f"{total:,} log entries by {len(writers)} writers, each once and in order, in {batches(lake)} batches")
    tell(f"as a rebuild gives them: { {name: count for name, (count, _) in kept.items()} }\n")


async def last_transaction_ends(url: str) -> None:
    """Wait until PostgreSQL has noticed that the writers are gone: until then, its log may still grow."""
    if not url.startswith("postgresql"):
        return
    connection = await asyncpg.connect(url)
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while await connection.fetchval(f"{others} AND backend_type = 'client backend'"):  # noqa: ASYNC110  (no signal)
        await asyncio.sleep(0.05)
    await connection.close()


def what_a_rebuild_writes(lake: Lake) -> Iterator[tuple[str, DataFrame]]:
    """Return the rows of each derived table, made from the start."""
    for name, (_, transform, _) in TRANSFORMS.items():
        yield name, transform(lake.read("bronze.event_log"))
    for projection in SHIPPED:
        yield projection.table, all_rows(lake, projection)


def batches(lake: Lake) -> int:
    """Return how many commits of ``bronze.event_log`` brought rows."""
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.location('bronze.event_log')}`")
    return history.where("operation = 'WRITE'").count()


@pytest.mark.long
async def test_a_replay_that_is_killed_goes_on_without_doubles(
    url: str, lake: Lake, session: StoreSession, tell: Tell
) -> None:
    rnd = random.Random(KILLS)
    store = await open_store(url)
    await complete_many(store)
    Archive(lake, session).run()
    update_silver(lake, "silver.events")
    known = [0]
    for _ in range(REPLAY_KILLS):
        await replay_until_killed(url, lake, store, rnd)
        known.append((await store.counts()).pending)
        tell(f"killed after {known[-1]:,} of {REPLAYED:,} events")
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
    tell(f"{REPLAY_KILLS} kills of a replay, and each of {REPLAYED:,} events was published once\n")


async def complete_many(store: EventStore) -> None:
    for _ in range(0, REPLAYED, 1_000):
        await store.add_events([new_event("order.placed", {"order": number}) for number in range(1_000)])
        request = ClaimRequest(bus="default", worker_id="host:1", token=new_token(), limit=1_000)
        await store.settle_events([Complete(claim.ref) for claim in await store.claim_next_events(request)])


async def replay_until_killed(url: str, lake: Lake, store: EventStore, rnd: random.Random) -> None:
    """Run the replay command, and kill it soon after it has published some events."""
    head = await store.log_head()
    options = ["--id", "again", "--rate", str(RATE), "--lake", lake.path, "--store", url]
    with victim(lake, "durabus.cli.main", "pipeline", "replay", *options) as process:
        while await store.log_head() == head:
            process.must_live()
            await asyncio.sleep(0.02)
        await asyncio.sleep(rnd.uniform(0.0, 0.6))
        process.must_live()
