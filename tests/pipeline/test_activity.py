"""``gold.activity``: counted by hand, folded in plain Python, and the same however the log is cut."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertSchemaEqual
from tests.pipeline.history import History, history_in
from tests.pipeline.random_history import RandomHistory
from tests.pipeline.recomputed.files import Files
from tests.pipeline.recomputed.lake import check_lake

from durabus import Action, LogEntry
from durabus.model.query import Counts
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.pipeline.activity import activity, as_rows, changes, parents_of
from durabus.pipeline.archive import event_log
from durabus.pipeline.facts import fingerprint
from durabus.pipeline.histograms import class_of, merged, percentile_ms
from durabus.pipeline.lake import Lake
from durabus.pipeline.run import Pipeline
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG
from durabus.pipeline.store_session import StoreSession

Content = Callable[[DataFrame], tuple[int, int]]
SEED = 7
STEPS = 160


async def random_entries(url: str) -> tuple[list[LogEntry], Counts]:
    async with history_in(url) as history:
        await RandomHistory(history, SEED).run(STEPS)
        page = await history.store.read_log(after="", limit=10_000)
        return page.entries, await history.store.counts()


class Past:
    """A random history: its entries, its log as a table, and the counts of the store at its end."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.entries, self.counts = asyncio.run(random_entries(url))
        self.log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
        self.parents = parents_of(self.log.where("action = 'PUBLISHED'")).cache()


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(spark, f"sqlite:///{tmp_path_factory.mktemp('activity')}/bus.db")


def kept(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame(rows.toArrow(), rows.schema)


def test_a_table_that_grew_in_random_steps_is_the_table_of_the_whole_log(past: Past, content: Content) -> None:
    rnd = random.Random(SEED)
    whole = kept(activity(past.log, past.parents))
    assertSchemaEqual(whole.schema, past.log.sparkSession.createDataFrame([], ACTIVITY.ddl).schema, ignoreNullable=True)
    for _ in range(2):
        cuts = [*sorted(rnd.sample(range(1, len(past.entries)), 3)), len(past.entries)]
        table, seen = None, -1
        for cut in cuts:
            added = kept(changes(past.log.where(F.col("seq") < cut), past.parents, after=seen))
            table, seen = kept(as_rows(added, table)), cut - 1
        assert table is not None
        assert content(table) == content(whole)


async def test_gold_grows_run_by_run_as_if_computed_at_once(  # noqa: PLR0917  (fixtures)
    lake: Lake,
    session: StoreSession,
    history: History,
    content: Content,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By a run that remembers the one before, by a new process, and by a run with too many entries for the driver."""
    made = RandomHistory(history, SEED)
    for turn in range(4):
        await made.run(25)
        if turn == 2:
            lake = Lake(lake.spark, lake.path)
        if turn == 3:
            monkeypatch.setattr("durabus.pipeline.news.FEW_ENTRIES", 1)
        Pipeline(lake, session.url).run()
    # No run reads the log before its own entries, so what an earlier run did wrong is still in the table.
    log = lake.read(EVENT_LOG.name)
    assert content(lake.read(ACTIVITY.name)) == content(activity(log, parents_of(log)))
    assert ACTIVITY.name in check_lake(Files([tmp_path / "bus.db"], Path(lake.path)))


def test_counters_are_those_of_the_log_folded_in_python(past: Past) -> None:
    expected: dict[tuple[datetime, str], Counter[str]] = {}
    claims: dict[int, LogEntry] = {}
    for entry in past.entries:
        at = datetime.fromtimestamp(entry.at_ts // 60 * 60, UTC)
        row = expected.setdefault((at, entry.type), Counter())
        row["entries"] += 1
        names = {Action.PUBLISHED: "published", Action.PICKED: "claimed", Action.FAILED: "failed"}
        names |= {Action.ABANDONED: "abandoned", Action.RELEASED: "released", Action.REQUEUED: "requeued"}
        if entry.action in names:
            row[names[entry.action]] += 1
        row["retried"] += entry.action is Action.PICKED and entry.attempt > 1
        row["completed"] += entry.status is EventStatus.COMPLETED
        row["dead"] += entry.status in DEAD_LETTER
        row["cancelled"] += entry.status is EventStatus.CANCELLED
        row["handler_us"] += round((entry.execution_time_ms or 0.0) * 1000)
        first = entry.action is Action.PICKED and entry.id not in claims
        row["waiting"] += first
        claims.setdefault(entry.id, entry) if first else None
        row["end_to_end"] += entry.status is EventStatus.COMPLETED
    occurred = {name for row in expected.values() for name in row if row[name]}
    assert occurred >= {"abandoned", "released", "requeued", "retried", "cancelled", "dead"}, "or the seed is too tame"
    rows = activity(past.log, past.parents).where("step = 'minute' AND facet = 'type'").collect()
    found = {(utc(row["since"]), row["type"]): counted(row, next(iter(expected.values()))) for row in rows}
    wanted = {key: {name: row[name] for name in next(iter(expected.values()))} for key, row in expected.items()}
    assert found == wanted


def counted(row: Row, names: object) -> dict[str, int]:
    values = {}
    for name in names:  # type: ignore[attr-defined]
        value = row[name]
        values[name] = sum(one["count"] for one in value) if isinstance(value, list) else value
    return values


def utc(instant: datetime) -> datetime:
    return instant.astimezone(UTC)


def test_every_step_and_facet_adds_up_to_the_same(past: Past) -> None:
    table = activity(past.log, past.parents).cache()
    sums = {
        (row["facet"], row["step"]): tuple(row)[2:]
        for row in table.groupBy("facet", "step")
        .agg(*(F.sum(name) for name in ("entries", "completed", "dead", "busy_us", "waiting_change")))
        .collect()
    }
    for facet in ("type", "handler", "worker", "error", "parent"):
        assert sums[facet, "minute"] == sums[facet, "hour"] == sums[facet, "day"]
    assert sums["type", "day"][0] == len(past.entries)
    depth = table.where("facet = 'type' AND step = 'day'").agg(F.sum("waiting_change"), F.sum("working_change")).first()
    assert depth is not None
    assert tuple(depth) == (past.counts.pending, past.counts.processing)


def test_a_claim_is_busy_time_of_its_worker_in_each_minute(past: Past) -> None:
    """From its grant to its end, also if the lease ends it."""
    held: dict[int, LogEntry] = {}
    expected: Counter[str] = Counter()
    for entry in past.entries:
        if entry.action is Action.PICKED:
            held[entry.id] = entry
        elif entry.action is not Action.STARTED and entry.id in held:
            claim = held.pop(entry.id)
            expected[str(claim.worker_id)] += round((entry.at_ts - claim.at_ts) * 1e6)
    rows = activity(past.log, past.parents).where("facet = 'worker' AND busy_us > 0")
    found = {
        row["name"]: row["busy"]
        for row in rows.where("step = 'minute'").groupBy("name").agg(F.sum("busy_us").alias("busy")).collect()
    }
    assert {name: pytest.approx(value, abs=1000) for name, value in expected.items()} == found
    most = rows.where("step = 'minute'").agg(F.max("busy_us")).first()
    assert most is not None
    assert 0 < most[0] <= 60_000_000 * 8


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.99, 1.0])
def test_percentiles_are_off_by_less_than_one_percent(spark: SparkSession, share: float) -> None:
    rnd = random.Random(SEED)
    given = sorted(int(10 ** rnd.uniform(0, 9)) for _ in range(500))
    frame = spark.createDataFrame([(one, n % 3) for n, one in enumerate(given)], "us BIGINT, part INT")
    entry = "sort_array(collect_list(named_struct('from_us', class, 'count', count)))"
    parts = (
        frame.groupBy("part", F.expr(class_of("us")).alias("class"))
        .count()
        .groupBy("part")
        .agg(F.expr(entry).alias("histogram"))
    )
    found = parts.agg(merged("histogram").alias("all")).select(percentile_ms("all", share)).first()
    assert found is not None
    exact = given[max(0, -int(-share * len(given) // 1) - 1)] / 1000
    assert found[0] == pytest.approx(exact, rel=0.01)


def test_a_histogram_without_durations_has_no_percentile(spark: SparkSession) -> None:
    empty = spark.createDataFrame([([],)], "h ARRAY<STRUCT<from_us: BIGINT, count: BIGINT>>")
    found = empty.select(percentile_ms("h", 0.5)).first()
    assert found is not None
    assert found[0] is None


ALIKE = [
    ("Timeout after 30 s on 10.0.0.7:8080", "Timeout after 7 s on 10.0.0.255:443"),
    ("no order 01a1e218-a671-77d0-aaaa-0123456789ab", "no order 01a1e218-bbbb-77d0-aaaa-ba9876543210"),
    ("KeyError: 'a'", 'KeyError: "b c"'),
    ("object at 0x7fcc2828bdd0", "object at 0x7fcc00000010"),
]


def test_errors_that_differ_in_their_details_have_one_fingerprint(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ALIKE, "one STRING, other STRING")
    prints = frame.select(*(fingerprint(F.col(name)) for name in frame.columns)).collect()
    assert all(one == other for one, other in prints)
    assert len({one for one, _ in prints}) == len(ALIKE)
