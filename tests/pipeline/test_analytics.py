"""What operators ask, on a history where every result can be counted by hand."""

import asyncio
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import history_in

from durabus.model.query import Counts
from durabus.pipeline import analytics
from durabus.pipeline.archive import event_log
from durabus.pipeline.derive import with_keys
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.schema import EVENT_LOG
from durabus.pipeline.silver import attempts, events


class Past(NamedTuple):
    """The tables of one history, and the counts of the store at its end."""

    log: DataFrame
    events: DataFrame
    attempts: DataFrame
    counts: Counts
    now: float


async def live(url: str) -> tuple[Counts, float]:
    """Make the events of ``varied``, then a claim that is neither renewed nor settled."""
    async with history_in(url) as history:
        await history.varied()
        await history.claim("host:dead", lease=3600.0)
        return await history.store.counts(), await history.store.now()


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    url = f"sqlite:///{tmp_path_factory.mktemp('analytics')}/bus.db"
    counts, now = asyncio.run(live(url))
    log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
    return Past(log, events(log), attempts(log), counts, now)


def by(rows: DataFrame, *key: str) -> dict[object, Row]:
    return {tuple(row[name] for name in key) if len(key) > 1 else row[key[0]]: row for row in rows.collect()}


def test_failures_latency_and_dead_letters_per_type(past: Past) -> None:
    rates = by(analytics.failure_rate(past.events), "type")
    assert {
        kind: (row["events"], row["ended"], row["dead"], row["failed_attempts"]) for kind, row in rates.items()
    } == {
        "order.placed": (3, 3, 0, 1),
        "payment.taken": (2, 2, 2, 2),
        "mail.requested": (2, 1, 0, 1),
    }
    assert (rates["payment.taken"]["dead_share"], rates["order.placed"]["dead_share"]) == (1.0, 0.0)
    spans = by(analytics.latency(past.events), "type")
    assert spans["payment.taken"]["waiting_p50_ms"] == 1000.0
    assert spans["payment.taken"]["end_to_end_p99_ms"] == 2000.0
    (dead,) = analytics.dead_letters(past.events).collect()
    assert (dead["type"], dead["fingerprint"], dead["events"]) == ("payment.taken", "KeyError: <text>", 2)
    assert dead["example"] == "KeyError: 'customer 3'"


def test_every_end_counts_for_its_handlers(past: Past) -> None:
    handlers = by(analytics.handler_failures(past.events), "handler_id")
    assert {
        name: (row["results"], row["succeeded"], row["failed"], row["attempts"], row["p50_ms"])
        for name, row in handlers.items()
    } == {"ship": (3, 3, 0, 3, 12.5), "mail": (1, 1, 0, 2, 7.0)}


def test_workers_that_hold_on_and_workers_that_died(past: Past) -> None:
    def stale(seconds_later: float, after: float) -> list[Row]:
        as_of = F.timestamp_micros(F.lit(int((past.now + seconds_later) * 1e6)))
        return analytics.stale_workers(past.attempts, as_of, after).collect()

    assert stale(0, 300.0) == []
    (row,) = stale(600, 300.0)
    assert (row["worker_id"], row["claims"], row["never_started"]) == ("host:dead", 1, 1)
    assert row["oldest_seconds"] == pytest.approx(601.0)
    (lost,) = analytics.abandoned_attempts(past.attempts).collect()
    assert (lost["worker_id"], lost["type"], lost["attempts"]) == ("host:9", "mail.requested", 1)


def test_depth_and_throughput_over_time(past: Past) -> None:
    depth = analytics.queue_depth(past.log, 5).orderBy("since").collect()
    assert (depth[-1]["waiting"], depth[-1]["working"]) == (past.counts.pending, past.counts.processing) == (0, 1)
    assert all(row["waiting"] >= 0 and row["working"] >= 0 for row in depth)
    assert max(row["working"] for row in depth) == 1
    assert all(row["since"].second % 5 == 0 for row in depth)
    assert analytics.step_of(past.log) == 1
    total = (
        analytics.throughput(past.log)
        .agg(*(F.sum(n) for n in ("published", "completed", "dead", "failed_attempts")))
        .first()
    )
    assert total is not None
    assert tuple(total) == (7, 4, 2, 4)


def test_percentiles_are_made_of_few_values(spark: SparkSession) -> None:
    given = [0.0, 0.012345, 9.996, 123.456, 1000.0, 98_765.4, -5.678, None]
    frame = spark.createDataFrame([(value,) for value in given], "ms DOUBLE")
    found = [row[0] for row in frame.select(analytics.three_digits("ms")).collect()]
    assert found == [0.0, *map(pytest.approx, (0.0123, 10.0, 123.0, 1000.0, 98_800.0, -5.68)), None]


def test_no_row_of_silver_or_gold_goes_through_python(spark: SparkSession) -> None:
    """A plan that goes through Python would name it."""
    log = spark.createDataFrame([], EVENT_LOG.ddl)
    rows = events(log)
    shipped = [one.rows(with_keys(rows, one)) for one in (hourly_counters(), latest_state("a"), journeys("a"))]
    asked = [analytics.latency(rows), analytics.failure_rate(rows), analytics.handler_failures(rows)]
    for made in (event_log(log.withColumn("ordinal", F.lit(1)), 0), attempts(log), *shipped, *asked):
        assert "Python" not in made._jdf.queryExecution().optimizedPlan().toString()
    seen = rows.select(F.udf(lambda text: text)("type"))
    assert "Python" in seen._jdf.queryExecution().optimizedPlan().toString()


ALIKE = [
    ("Timeout after 30 s on 10.0.0.7:8080", "Timeout after 7 s on 10.0.0.255:443"),
    ("no order 01a1e218-a671-77d0-aaaa-0123456789ab", "no order 01a1e218-bbbb-77d0-aaaa-ba9876543210"),
    ("KeyError: 'a'", 'KeyError: "b c"'),
    ("object at 0x7fcc2828bdd0", "object at 0x7fcc00000010"),
]


def test_errors_that_differ_in_their_details_have_one_fingerprint(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ALIKE, "one STRING, other STRING")
    prints = frame.select(*(analytics.fingerprint(F.col(name)) for name in frame.columns)).collect()
    assert all(one == other for one, other in prints)
    assert len({one for one, _ in prints}) == len(ALIKE)
