"""What operators ask, on a history where every result can be counted by hand."""

import asyncio
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import history_in

from durabus import DLQInspector, Event, EventBus
from durabus.model.event import DEFAULT_BUS
from durabus.model.query import Counts
from durabus.pipeline import analytics
from durabus.pipeline.activity import activity, parents_of
from durabus.pipeline.archive import event_log
from durabus.pipeline.key_tracing import with_expressions
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.schema import EVENT_LOG
from durabus.pipeline.silver import attempts, events

SERVED = "served"
"""The bus of a real worker. All other events are on the default bus."""


class Past(NamedTuple):
    """The tables of one history, and the counts of the default bus at its end."""

    log: DataFrame
    events: DataFrame
    attempts: DataFrame
    activity: DataFrame
    counts: Counts
    now: float


async def live(url: str) -> tuple[Counts, float]:
    """Serve a bus. Then make the events of ``varied``, and a claim that is neither renewed nor settled."""
    await serve(url)
    async with history_in(url) as history:
        await history.varied()
        await history.claim("host:dead", lease=3600.0)
        return await history.store.counts(DEFAULT_BUS), await history.store.now()


async def serve(url: str) -> None:
    """Let two handlers handle two events: one retry for the first event, a dead letter and a requeue for the second."""
    fails, done = [True, False, True, True, False], asyncio.Event()
    bus = EventBus(url, name=SERVED, retry={"max_retries": 1, "base_delay": 0.01})

    @bus.on("parcel.packed", id="weigh")
    async def weigh(event: Event) -> None: ...

    @bus.on("parcel.packed", id="label")
    async def label(event: Event) -> None:
        if fails.pop(0):
            raise RuntimeError("the printer has no paper")
        if not fails:
            done.set()

    async with bus:
        await bus.publish("parcel.packed")
        dead = await bus.publish("parcel.packed")
        await DLQInspector(bus.store, bus=SERVED).retry(dead)
        await asyncio.wait_for(done.wait(), 30)


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    url = f"sqlite:///{tmp_path_factory.mktemp('analytics')}/bus.db"
    counts, now = asyncio.run(live(url))
    log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
    return Past(log, events(log), attempts(log), activity(log, parents_of(log)).cache(), counts, now)


def by(rows: DataFrame, *key: str) -> dict[object, Row]:
    return {tuple(row[name] for name in key) if len(key) > 1 else row[key[0]]: row for row in rows.collect()}


def rows_of(past: Past, facet: str, *key: str, bus: str = DEFAULT_BUS) -> dict[object, Row]:
    return by(past.activity.where(f"step = 'day' AND facet = '{facet}' AND bus = '{bus}'"), *key)


def test_failures_latency_and_dead_letters_per_type(past: Past) -> None:
    types = rows_of(past, "type", "type")
    assert {
        kind: (row["published"], row["completed"], row["dead"], row["failed"] + row["abandoned"], row["retried"])
        for kind, row in types.items()
    } == {
        "order.placed": (3, 3, 0, 1, 1),
        "payment.taken": (2, 0, 2, 2, 0),
        "mail.requested": (2, 1, 0, 1, 1),
    }
    assert types["payment.taken"]["waiting_p50_ms"] == pytest.approx(1000.0, rel=0.01)
    assert types["payment.taken"]["end_to_end_p99_ms"] is None, "only completed events count"
    assert types["order.placed"]["end_to_end_p50_ms"] == pytest.approx(2000.0, rel=0.5)
    assert types["order.placed"]["handler_us"] == 12_500 + 3_500 + 12_500 + 12_500
    errors = rows_of(past, "error", "type", "name")
    assert {key: (row["failed"], row["dead"], row["abandoned"]) for key, row in errors.items()} == {
        ("order.placed", "Timeout: no answer from <n> after <n> s"): (1, 0, 0),
        ("payment.taken", "KeyError: <text>"): (2, 2, 0),
        ("mail.requested", "lease expired (worker host:<n>)"): (0, 0, 1),
    }
    dead = errors["payment.taken", "KeyError: <text>"]
    assert dead["example"] == "KeyError: 'customer 3'"
    assert dead["first_at"] < dead["last_at"]


def test_every_end_counts_for_its_handlers(past: Past) -> None:
    handlers = rows_of(past, "handler", "type", "name")
    assert {
        key: (row["entries"], row["completed"], row["failed"], row["handler_us"]) for key, row in handlers.items()
    } == {
        ("order.placed", "ship"): (2, 2, 0, 25_000),
        ("order.placed", "mail"): (1, 1, 0, 7_000),
        ("mail.requested", "ship"): (1, 1, 0, 12_500),
    }
    assert handlers["order.placed", "ship"]["running_p50_ms"] == pytest.approx(12.5, rel=0.01)


def test_a_real_bus_gives_each_handler_its_own_rate(past: Past) -> None:
    """A requeue calls only the handler that had failed, and a success before it counts once."""
    handlers = rows_of(past, "handler", "name", bus=SERVED)
    assert {name: (row["completed"], row["failed"]) for name, row in handlers.items()} == {
        "weigh": (2, 0),
        "label": (2, 1),
    }
    (parcels,) = rows_of(past, "type", "type", bus=SERVED).values()
    names = ("published", "claimed", "retried", "failed", "dead", "requeued", "completed")
    assert tuple(parcels[name] for name in names) == (2, 5, 2, 3, 1, 1, 2)


def test_workers_that_hold_on_and_workers_that_died(past: Past) -> None:
    def stale(seconds_later: float, after: float) -> list[Row]:
        as_of = F.timestamp_micros(F.lit(int((past.now + seconds_later) * 1e6)))
        return analytics.stale_workers(past.attempts, as_of, after).collect()

    assert stale(0, 300.0) == []
    (row,) = stale(600, 300.0)
    assert (row["worker_id"], row["claims"], row["never_started"]) == ("host:dead", 1, 1)
    assert row["oldest_seconds"] == pytest.approx(601.0)
    workers = rows_of(past, "worker", "name")
    assert {name: row["abandoned"] for name, row in workers.items() if row["abandoned"]} == {"host:9": 1}
    assert workers["host:9"]["busy_us"] == 11_000_000
    assert workers["host:2"]["busy_us"] == 2_000_000


def test_depth_and_throughput_over_time(past: Past) -> None:
    minutes = (
        past.activity.where(f"step = 'minute' AND facet = 'type' AND bus = '{DEFAULT_BUS}'").orderBy("since").collect()
    )
    names = ("waiting_change", "working_change")
    assert tuple(sum(row[name] for row in minutes) for name in names) == (past.counts.pending, past.counts.processing)
    assert all(row["since"].second == 0 for row in minutes)
    sums = [sum(row[name] for row in minutes) for name in ("published", "completed", "dead", "failed", "abandoned")]
    assert sums == [7, 4, 2, 3, 1]


def test_no_row_of_silver_or_gold_goes_through_python(spark: SparkSession) -> None:
    """A plan that goes through Python would name it."""
    log = spark.createDataFrame([], EVENT_LOG.ddl)
    rows = events(log)
    shipped = [one.rows(with_expressions(rows, one)) for one in (hourly_counters(), latest_state("a"), journeys("a"))]
    asked = [activity(log, parents_of(log))]
    for made in (event_log(log.withColumn("ordinal", F.lit(1)), 0), attempts(log), *shipped, *asked):
        assert "Python" not in made._jdf.queryExecution().optimizedPlan().toString()
    seen = rows.select(F.udf(lambda text: text)("type"))
    assert "Python" in seen._jdf.queryExecution().optimizedPlan().toString()
