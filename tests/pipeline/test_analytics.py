"""What operators ask, on a history where every answer can be counted by hand."""

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History

from durabus import EventStore
from durabus.pipeline import analytics
from durabus.pipeline.archive import event_log
from durabus.pipeline.silver import attempts, events

Tables = tuple[DataFrame, DataFrame, DataFrame]


@pytest.fixture
async def tables(spark: SparkSession, url: str, history: History) -> Tables:
    """``varied`` (see there), then a claim that is never heard of again."""
    await history.varied()
    await history.claim("host:dead", lease=3600.0)
    log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
    return log, events(log), attempts(log)


def by(rows: DataFrame, *key: str) -> dict[object, Row]:
    return {tuple(row[name] for name in key) if len(key) > 1 else row[key[0]]: row for row in rows.collect()}


async def test_failures_latency_and_dead_letters_per_type(tables: Tables) -> None:
    _, silver, _ = tables
    rates = by(analytics.failure_rate(silver), "type")
    assert {
        kind: (row["events"], row["ended"], row["dead"], row["failed_attempts"]) for kind, row in rates.items()
    } == {
        "order.placed": (3, 3, 0, 1),
        "payment.taken": (2, 2, 2, 2),
        "mail.requested": (2, 1, 0, 1),
    }
    assert (rates["payment.taken"]["dead_share"], rates["order.placed"]["dead_share"]) == (1.0, 0.0)
    spans = by(analytics.latency(silver), "type")
    assert spans["payment.taken"]["waiting_p50_ms"] == 1000.0
    assert spans["payment.taken"]["end_to_end_p99_ms"] == 2000.0
    (dead,) = analytics.dead_letters(silver).collect()
    assert (dead["type"], dead["fingerprint"], dead["events"]) == ("payment.taken", "KeyError: <text>", 2)
    assert dead["example"] == "KeyError: 'customer 3'"
    (handler,) = analytics.handler_failures(silver).collect()
    assert (handler["handler_id"], handler["results"], handler["succeeded"], handler["attempts"]) == ("mail", 1, 1, 2)


async def test_workers_that_hold_on_and_workers_that_died(tables: Tables, store: EventStore) -> None:
    _, _, held = tables
    now = await store.now()

    def stale(seconds_later: float, after: float) -> list[Row]:
        as_of = F.timestamp_micros(F.lit(int((now + seconds_later) * 1e6)))
        return analytics.stale_workers(held, as_of, after).collect()

    assert stale(0, 300.0) == []
    (row,) = stale(600, 300.0)
    assert (row["worker_id"], row["claims"], row["never_started"]) == ("host:dead", 1, 1)
    assert row["oldest_seconds"] == pytest.approx(601.0)
    (lost,) = analytics.abandoned_attempts(held).collect()
    assert (lost["worker_id"], lost["type"], lost["attempts"]) == ("host:9", "mail.requested", 1)


async def test_depth_and_throughput_over_time(tables: Tables, store: EventStore) -> None:
    log, _, _ = tables
    depth = analytics.queue_depth(log, 5).orderBy("since").collect()
    counts = await store.counts()
    assert (depth[-1]["waiting"], depth[-1]["working"]) == (counts.pending, counts.processing) == (0, 1)
    assert all(row["waiting"] >= 0 and row["working"] >= 0 for row in depth)
    assert max(row["working"] for row in depth) == 1
    assert all(row["since"].second % 5 == 0 for row in depth)
    assert analytics.stretch_of(log) == 1
    total = (
        analytics.throughput(log)
        .agg(*(F.sum(n) for n in ("published", "completed", "dead", "failed_attempts")))
        .first()
    )
    assert total is not None
    assert tuple(total) == (7, 4, 2, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Timeout after 30 s on 10.0.0.7:8080", "Timeout after 7 s on 10.0.0.255:443"),
        ("no order 01a1e218-a671-77d0-aaaa-0123456789ab", "no order 01a1e218-bbbb-77d0-aaaa-ba9876543210"),
        ("KeyError: 'a'", 'KeyError: "b c"'),
        ("object at 0x7fcc2828bdd0", "object at 0x7fcc00000010"),
    ],
)
def test_errors_that_differ_in_their_details_have_one_fingerprint(spark: SparkSession, one: str, other: str) -> None:
    frame = spark.createDataFrame([(one,), (other,), ("something else",)], "error STRING")
    assert frame.select(analytics.fingerprint(F.col("error"))).distinct().count() == 2
