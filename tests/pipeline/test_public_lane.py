"""Kafka's public lane: Spark's own connector and ours return the same rows."""

import shutil
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from durabus import new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete
from durabus.pipeline.public_lane import published

SAME = ("event_id", "bus", "type", "at", "tags", "metadata", "parent_id")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Spark's connector to Kafka is fetched with Maven")
async def test_both_connectors_give_equal_rows(spark: SparkSession, kafka_url: str) -> None:
    prefix = uuid4().hex
    url = f"{kafka_url}?prefix={prefix}"
    store = await open_store(url)
    try:
        await store.add_events([new_event("order.placed", {"n": n}, tags=["eu"] if n % 2 else []) for n in range(12)])
        request = ClaimRequest(bus="default", worker_id="host:1", token=new_token(), limit=5)
        await store.settle_events([Complete(claim.ref) for claim in await store.claim_next_events(request)])
        twice = new_event(
            "mail.requested", {"n": 99}, metadata={"source": "web"}, tags=["a", "b"], parent_id=str(uuid4())
        )
        await store.add_events([twice])
        await store.add_events([twice])
    finally:
        await store.close()
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", urlsplit(url).netloc)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", f"events.{prefix}")
        .option("includeHeaders", "true")
        .load()
    )
    native = published(records).orderBy("event_id").collect()
    ours = spark.read.format("durabus").option("url", url).option("action", "PUBLISHED").load()
    assert [tuple(row[name] for name in SAME) for row in native] == [
        tuple(row) for row in ours.select(*SAME).orderBy("event_id").collect()
    ]
    assert len(native) == 13
    assert {row["payload"] for row in native if row["type"] == "mail.requested"} == {'{"n":99}'}
