"""``gold.activity``: counted by hand, folded in plain Python, and the same however the log is cut."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertSchemaEqual
from tests.pipeline.history import History, history_in

from durabus import Action, LogEntry
from durabus.model.claim import Claim
from durabus.model.query import Counts
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release
from durabus.model.statuses import DEAD_LETTER, EventStatus, ResultStatus
from durabus.pipeline.activity import activity, as_rows, changes, parents_of
from durabus.pipeline.archive import event_log
from durabus.pipeline.facts import fingerprint
from durabus.pipeline.histograms import class_of, merged, percentile_ms
from durabus.pipeline.schema import ACTIVITY

Content = Callable[[DataFrame], tuple[int, int]]
SEED = 7
STEPS = 160


class RandomHistory:
    """Commands of a worker, an administrator and a clock, chosen at random."""

    def __init__(self, history: History, seed: int) -> None:
        self.history, self.random = history, random.Random(seed)
        self.held: list[Claim] = []
        self.event_ids: list[str] = []

    async def run(self, steps: int) -> None:
        deeds = [self.publish, self.claim, self.settle, self.settle, self.wait, self.administer]
        for _ in range(steps):
            await self.random.choices(deeds, [4, 4, 3, 3, 1, 1])[0]()

    async def publish(self) -> None:
        parent = self.random.choice([None, *self.event_ids[-5:]])
        event = await self.history.publish(self.random.choice(["order.placed", "mail.sent"]), {}, parent_id=parent)
        self.event_ids.append(event.event_id)

    async def claim(self) -> None:
        worker = f"host:{self.random.randrange(3)}"
        self.held += await self.history.claim(worker, lease=self.random.choice([5.0, 300.0]), limit=2)

    async def settle(self) -> None:
        if not self.held:
            return
        claim = self.held.pop(self.random.randrange(len(self.held)))
        ends = [self._completed, self._failed, self._dead, self._released]
        await self.history.store.settle_events([self.random.choice(ends)(claim)])  # refused if it was overtaken
        self.history.clock.advance(self.random.random() * 3)

    def _completed(self, claim: Claim) -> Complete:
        took = self.random.random() * 100
        done = HandlerResult(handler_id="ship", status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=took)
        return Complete(claim.ref, (done,), (), took)

    def _failed(self, claim: Claim) -> Fail:
        return Fail(claim.ref, f"no answer from {self.random.randrange(9)}", 0.0, execution_time_ms=2.5)

    def _dead(self, claim: Claim) -> Fail:
        done = HandlerResult(handler_id="ship", status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=1.0)
        lost = HandlerResult(handler_id="mail", status=ResultStatus.UNRECOVERABLE, attempts=1, execution_time_ms=2.0)
        return Fail(claim.ref, "KeyError: 'customer'", None, (done, lost), execution_time_ms=3.5)

    def _released(self, claim: Claim) -> Release:
        return Release(claim.ref, reason="waits")

    async def wait(self) -> None:
        self.history.clock.advance(self.random.choice([10.0, 100.0, 2000.0]))
        await self.history.store.expire_events()

    async def administer(self) -> None:
        store = self.history.store
        page = await store.list_dead_letters(limit=1)
        if page.events:
            await store.requeue_dead_letters([page.events[0].id])
        if self.held and self.random.random() < 0.3:
            event = await store.get_event(self.held.pop().event.id)
            if event is not None and event.status is EventStatus.PROCESSING:
                await store.cancel_event(event.id, reason="not wanted")


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
    for _ in range(3):
        cuts = [*sorted(rnd.sample(range(1, len(past.entries)), 3)), len(past.entries)]
        table, seen = None, -1
        for cut in cuts:
            added = kept(changes(past.log.where(F.col("seq") < cut), past.parents, after=seen))
            table, seen = kept(as_rows(added, table)), cut - 1
        assert table is not None
        assert content(table) == content(whole)


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
    assert {"late", "abandoned"} & {name for row in expected.values() for name in row if row[name]}
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
