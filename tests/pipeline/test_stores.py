"""The same history in every store that processes share: the same log, the same tables, and no password anywhere."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import BEGIN, history_in

from durabus import EventStore, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import ResultStatus
from durabus.pipeline.analytics import STALE_AFTER, analyze
from durabus.pipeline.gaps import archive_name
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.schema import COLUMNS

Digest = dict[str, tuple[int, int]]

PROJECTIONS = [hourly_counters(), latest_state("order"), journeys("order")]
ANALYTICS = {"gold.activity", "gold.stale_workers"}
IDS = [str(uuid4()) for _ in range(12)]
PLAIN = [name for name in COLUMNS if name not in ("position", "id", "event_id", "fence") and not name.endswith("at")]
ENTRIES = 28
"""The number of entries that ``write_history`` writes."""


@pytest.fixture(scope="module")
async def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Digest:
    """The digest of the tables that SQLite gives."""
    folder = tmp_path_factory.mktemp("sqlite")
    url = f"sqlite:///{folder}/bus.db"
    await write_history(url)
    lake = derived(spark, url, folder / "lake")
    found = digest(lake)
    assert sorted(found) == sorted(set(lake.tables()) - {"bronze.quarantine", "ops.runs"})
    assert len(found) == 1 + 2 + len(PROJECTIONS) + len(ANALYTICS)
    assert found.keys() > ANALYTICS
    assert all(rows for rows, _ in found.values())
    return found


@pytest.fixture
def other(request: pytest.FixtureRequest) -> str:
    """The URL of another store."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql_database"))
    return f"{request.getfixturevalue(f'{request.param}_url')}?prefix={uuid4().hex}"


@pytest.mark.parametrize("other", ["postgresql", pytest.param("redis", marks=pytest.mark.long)], indirect=True)
async def test_the_same_history_is_the_same_log(
    spark: SparkSession,
    url: str,
    other: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One clock writes all of them, so instants count too: only the position is left out."""
    with caplog.at_level(logging.DEBUG, logger="durabus"):
        found = []
        for one in (url, other):
            await write_history(one)
            log = spark.read.format("durabus").option("url", one).option("rowsPerPartition", 20).load()
            log.explain("extended")
            found.append(log.drop("position").orderBy("ordinal").collect())
    assert len(found[0]) == ENTRIES
    assert found[1] == found[0]
    expect_secret(other, caplog.text + "".join(capfd.readouterr()))


@pytest.mark.long
@pytest.mark.parametrize("other", ["nats", "kafka"], indirect=True)
async def test_a_broker_keeps_the_same_trails(spark: SparkSession, url: str, other: str) -> None:
    """A broker's log has its own clock and fences, so these are left out."""
    for one in (url, other):
        async with opened(one) as store:
            await trade(store)
    assert len(trails(spark, url)) == len(IDS)
    assert trails(spark, other) == trails(spark, url)


@pytest.mark.long
@pytest.mark.parametrize("other", ["postgresql", "redis", "nats", "kafka"], indirect=True)
async def test_every_store_can_be_archived_and_verified(other: str, lake: Lake) -> None:
    async with opened(other) as store:
        await trade(store)
    Pipeline(lake, other).run(PipelinePart.ARCHIVE)
    async with opened(other) as store:
        assert await store.read_position(archive_name(lake)) == await store.log_head()
        assert lake.value("bronze.event_log", "count(*)") == await store.log_lag("")


@pytest.mark.long
async def test_sqlite_and_postgresql_give_identical_silver_and_gold_tables(
    spark: SparkSession, postgresql_database: str, expected: Digest, tmp_path: Path
) -> None:
    await write_history(postgresql_database)
    assert digest(derived(spark, postgresql_database, tmp_path / "lake")) == expected
    expect_secret(postgresql_database, text_of(tmp_path))


@pytest.mark.long
async def test_a_lake_behind_a_url_has_the_same_tables(
    spark: SparkSession, url: str, expected: Digest, tmp_path: Path
) -> None:
    """As in a bucket, Spark lists the files, not the file system."""
    await write_history(url)
    assert digest(derived(spark, url, f"file://{tmp_path}/lake")) == expected


async def write_history(url: str) -> None:
    """Write events with every outcome, a requeued dead letter and a claim that never ends."""
    async with history_in(url) as history:
        await history.varied()
        await history.store.requeue_dead_letters([3])
        await history.claim("host:dead", lease=3600.0)
        # PostgreSQL shows an entry when no older transaction runs any more.
        while (shown := await history.store.log_lag("")) < ENTRIES:  # noqa: ASYNC110  (there is no signal)
            await asyncio.sleep(0.01)
        assert shown == ENTRIES


async def trade(store: EventStore) -> None:
    """Publish twelve events in two batches: completed, with results, tried twice, dead, waiting."""
    for start in (0, 6):
        await store.add_events(
            [
                new_event("order.placed", {"order": n % 4, "n": n}, event_id=IDS[n], tags=["eu"] if n % 2 else [])
                for n in range(start, start + 6)
            ]
        )
        done = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=4.0)
        for turn in range(2):
            request = ClaimRequest(bus="default", worker_id=f"host:{turn}", token=new_token(), limit=5)
            claims = sorted(await store.claim_next_events(request), key=lambda claim: claim.event.payload["n"])
            await store.start_events([claim.ref for claim in claims[:1]])
            await store.settle_events(
                [
                    Fail(claim.ref, f"no luck {number}", 0.0 if turn == 0 and number == 0 else None)
                    if number < 2
                    else Complete(claim.ref, results=(done,) if number == 2 else (), execution_time_ms=1.5)
                    for number, claim in enumerate(claims)
                ]
            )


def trails(spark: SparkSession, url: str) -> dict[str, list[tuple[object, ...]]]:
    """Return the entries of each event in their order, without the fields that differ between stores."""
    rows = spark.read.format("durabus").option("url", url).option("rowsPerPartition", 20).load().orderBy("ordinal")
    found: dict[str, list[tuple[object, ...]]] = {}
    for event_id, *entry in rows.select("event_id", *PLAIN).collect():
        found.setdefault(event_id, []).append(tuple(entry))
    return found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EventStore]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


def derived(spark: SparkSession, url: str, place: str | Path) -> Lake:
    """Return every table of a store with this history."""
    lake = Lake(spark, place)
    pipeline = Pipeline(lake, url, PROJECTIONS)
    pipeline.run(PipelinePart.ARCHIVE)
    pipeline.run(PipelinePart.PROJECT)
    analyze(lake, as_of=BEGIN + 2 * STALE_AFTER)
    return lake


def digest(lake: Lake) -> Digest:
    """Return the number of rows and the sum of their hashes for each derived table, in one query."""
    names = [name for name in lake.tables() if name.startswith(("silver.", "gold.")) or name == "bronze.event_log"]
    hashed = [
        rows.select(F.lit(name).alias("name"), F.xxhash64(*rows.columns).cast("decimal(38,0)").alias("hash"))
        for name in names
        for rows in [lake.read(name).drop("position")]
    ]
    sums = reduce(DataFrame.unionAll, hashed).groupBy("name").agg(F.count("*"), F.sum("hash")).collect()
    return {name: (rows, int(total)) for name, rows, total in sums}


def text_of(folder: Path) -> str:
    """Return the text of all files."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()).decode(errors="replace")


def expect_secret(url: str, told: str) -> None:
    password = urlsplit(url).password
    assert password is None or password not in told
