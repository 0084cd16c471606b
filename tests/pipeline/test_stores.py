"""The same events through every store that others can see: the same tables, and no password anywhere."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from durabus import EventStore, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import ResultStatus
from durabus.pipeline.analytics import abandoned_attempts, dead_letters, failure_rate, handler_failures
from durabus.pipeline.archive import Archive, event_log
from durabus.pipeline.gate import verify
from durabus.pipeline.lake import Lake
from durabus.pipeline.project import with_keys
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.silver import attempts, events

IDS = [str(uuid4()) for _ in range(12)]
SAME = {
    "silver.events": (
        "event_id, bus, type, status, generation, attempts, claims, failures, worker_id, last_error, errors, tags, "
        "parent_id, metadata, payload, results, replay_of, ended_at IS NULL"
    ),
    "silver.attempts": "event_id, attempt, bus, type, worker_id, outcome, error, execution_time_ms, started_at IS NULL",
    "gold.latest_order": "order, type, status, event_id, payload, events",
    "gold.journeys_order": "order, path",
    "gold.hourly_counters": "bus, type, events, completed, dead, retried, claims",
    "gold.failure_rate": "*",
    "gold.handler_failures": "bus, handler_id, results, succeeded, failed, attempts, p50_ms",
    "gold.dead_letters": "bus, type, fingerprint, events",
    "gold.abandoned_attempts": "worker_id, bus, type, attempts",
}
"""What must be the same everywhere: every column but instants, and numbers that are each store's own."""

Rows = dict[str, list[tuple[object, ...]]]


async def trade(store: EventStore) -> None:
    """Twelve events in two batches: completed, with results, tried twice, dead, waiting."""
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


def tables_of(spark: SparkSession, url: str) -> Rows:
    """By the transforms alone: what Delta does with their rows is tested elsewhere, and takes ten times as long."""
    log = event_log(spark.read.format("durabus").option("url", url).option("rowsPerPartition", 20).load(), 0).cache()
    silver, held = events(log).cache(), attempts(log)
    tables = {
        "silver.events": silver,
        "silver.attempts": held,
        "gold.failure_rate": failure_rate(silver),
        "gold.handler_failures": handler_failures(silver),
        "gold.dead_letters": dead_letters(silver),
        "gold.abandoned_attempts": abandoned_attempts(held),
    }
    for projection in (hourly_counters(), latest_state("order"), journeys("order")):
        ended = with_keys(silver.where("ended_at IS NOT NULL"), projection)
        tables[f"gold.{projection.name}"] = projection.rows(ended)
    return {
        name: sorted((tuple(row) for row in tables[name].selectExpr(*split(columns)).collect()), key=repr)
        for name, columns in SAME.items()
    }


def split(columns: str) -> list[str]:
    return columns.split(", ")


@pytest.fixture(scope="module")
def expected() -> dict[str, Rows]:
    """What SQLite gave, for the other stores."""
    return {}


@pytest.mark.parametrize(
    "kind", ["postgresql", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("redis", "nats", "kafka"))]
)
async def test_the_same_events_give_the_same_tables(
    *,
    kind: str,
    request: pytest.FixtureRequest,
    spark: SparkSession,
    url: str,
    lake: Lake,
    expected: dict[str, Rows],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if not expected:
        async with opened(url) as store:
            await trade(store)
        expected["sqlite"] = tables_of(spark, url)
    server = request.getfixturevalue("postgresql_database" if kind == "postgresql" else f"{kind}_url")
    other = server if kind == "postgresql" else f"{server}?prefix={uuid4().hex}"
    with caplog.at_level(logging.DEBUG, logger="durabus"):
        async with opened(other) as store:
            await trade(store)
            assert tables_of(spark, other) == expected["sqlite"]
            Archive(lake, other, rows_per_batch=20).run()
            assert (await verify(lake, store, other)).position == await store.log_head()
            assert lake.value("bronze.event_log", "count(*)") == await store.log_lag("")
        spark.read.format("durabus").option("url", other).load().explain("extended")
    password = urlsplit(other).password
    if password:
        told = caplog.text + "".join(capfd.readouterr())
        assert password not in told
        assert password.encode() not in written(lake)


def written(lake: Lake) -> bytes:
    """Everything that is on the disk of it."""
    return b"".join(path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EventStore]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()
