"""The same events through every store that others can see: the same tables, and no password anywhere."""

import logging
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
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import TRANSFORMS, update_silver
from durabus.pipeline.gate import verify
from durabus.pipeline.lake import Lake
from durabus.pipeline.project import rebuild_projection
from durabus.pipeline.projections import latest_state

ORDERS = latest_state("order")
IDS = [str(uuid4()) for _ in range(12)]
SAME_EVENTS = (
    "event_id, bus, type, status, generation, attempts, claims, failures, worker_id, last_error, errors, tags, "
    "parent_id, metadata, payload, results"
)
SAME_ATTEMPTS = "event_id, attempt, worker_id, outcome, error, execution_time_ms, started_at IS NULL"


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


async def tables_of(url: str, lake: Lake) -> list[list[tuple[object, ...]]]:
    """What must be the same everywhere: everything but instants, and numbers that are each store's own."""
    store = await open_store(url)
    try:
        await trade(store)
        Archive(lake, url, rows_per_batch=20).run()
        assert (await verify(lake, store, url)).position == await store.log_head()
        assert lake.value("bronze.event_log", "count(*)") == await store.log_lag("")
    finally:
        await store.close()
    for name in TRANSFORMS:
        update_silver(lake, name)
    rebuild_projection(lake, ORDERS)
    lake.register()
    questions = [
        f"SELECT {SAME_EVENTS} FROM silver.events ORDER BY event_id",
        f"SELECT {SAME_ATTEMPTS} FROM silver.attempts ORDER BY event_id, attempt, worker_id",
        "SELECT order, type, status, event_id, payload, events FROM gold.latest_order ORDER BY order",
    ]
    return [[tuple(row) for row in lake.spark.sql(question).collect()] for question in questions]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[tuple[object, ...]]]]:
    """What SQLite gave, for the other stores."""
    return {}


@pytest.mark.parametrize("kind", ["postgresql", "redis", "nats", "kafka"])
async def test_the_same_events_give_the_same_tables(
    *,
    kind: str,
    request: pytest.FixtureRequest,
    spark: SparkSession,
    url: str,
    tmp_path: Path,
    expected: dict[str, list[list[tuple[object, ...]]]],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if not expected:
        expected["sqlite"] = await tables_of(url, Lake(spark, tmp_path / "sqlite"))
    server = request.getfixturevalue("postgresql_database" if kind == "postgresql" else f"{kind}_url")
    other = server if kind == "postgresql" else f"{server}?prefix={uuid4().hex}"
    with caplog.at_level(logging.DEBUG, logger="durabus"):
        found = await tables_of(other, Lake(spark, tmp_path / kind))
        spark.read.format("durabus").option("url", other).load().explain("extended")
    assert found == expected["sqlite"]
    password = urlsplit(other).password
    if password:
        told = caplog.text + "".join(capfd.readouterr())
        assert password not in told
        assert not [
            path for path in (tmp_path / kind).rglob("*") if path.is_file() and password.encode() in path.read_bytes()
        ]
