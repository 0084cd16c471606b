"""The Kafka store among plain clients, and through its broker's troubles."""

import asyncio
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.replicated_log.broker_tests import Broker, BrokerTests

from durabus import new_event, open_store
from durabus.errors import ConfigurationError, DamagedLogError, SchemaError, StoreUnavailableError
from durabus.stores.kafka.layout import KEPT
from durabus.stores.kafka.snapshots import MANIFEST_KEY
from durabus.stores.replicated_log.transport import GapError
from durabus.testing.servers.kafka import KafkaServer
from durabus.testing.servers.server import Server

READER = """
import json, sys, time
from confluent_kafka import Consumer

url, prefix, count = sys.argv[1:]
brokers = url.removeprefix("kafka://")
consumer = Consumer({"bootstrap.servers": brokers, "group.id": prefix, "auto.offset.reset": "earliest"})
consumer.subscribe([f"events.{prefix}"])
print("reading", flush=True)
left, deadline = int(count), time.monotonic() + 40
while left and time.monotonic() < deadline:
    for message in consumer.consume(100, 0.2):
        if message.error() is None:
            headers = {name: value.decode() for name, value in message.headers()}
            print(json.dumps([headers, message.value().decode()]))
            left -= 1
consumer.close()
sys.exit(left or "durabus" in sys.modules)
"""

WRITER = """
import json, sys
from confluent_kafka import Producer

url, prefix, lane = sys.argv[1:]
producer = Producer({"bootstrap.servers": url.removeprefix("kafka://")})
for type_, headers, body in json.load(sys.stdin):
    topic = f"{prefix}.control" if lane == "control" else f"events.{prefix}"
    named = {"event_type": type_, **headers} if type_ else headers
    producer.produce(topic, value=body.encode(), headers=list(named.items()))
sys.exit(producer.flush(20))
"""


def bootstrap(broker: Broker) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": broker.server_url.removeprefix("kafka://")}


class TestKafka(BrokerTests):
    plain_reader = READER
    plain_writer = WRITER
    crashes = (True,)  # each one takes it seconds

    @pytest.fixture
    def server_url(self, kafka_url: str) -> str:
        return kafka_url

    @pytest.fixture
    def own_server(self, kafka_server: KafkaServer) -> Server:
        """The broker of all tests. They run one after the other, so a test may restart it."""
        return kafka_server

    def records_left(self, broker: Broker) -> int:
        consumer = Consumer({**bootstrap(broker), "group.id": "x"})
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
            for topic in (f"{broker.prefix}.control", f"events.{broker.prefix}")
        ]
        consumer.close()
        return sum(high - low for low, high in ends)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [("retention.ms", "1000"), ("cleanup.policy", "compact"), ("message.timestamp.type", "CreateTime")],
    )
    async def test_a_topic_that_would_lose_or_bend_records_is_refused(
        self, broker: Broker, setting: str, value: str
    ) -> None:
        admin = AdminClient(bootstrap(broker))
        topic = NewTopic(f"{broker.prefix}.control", num_partitions=1, config={**KEPT, setting: value})
        for made in admin.create_topics([topic]).values():
            made.result()
        with pytest.raises(SchemaError, match=f"would lose or change records: .*{setting}={value}"):
            await broker.open()

    async def test_a_topic_with_several_partitions_is_refused(self, broker: Broker) -> None:
        admin = AdminClient(bootstrap(broker))
        for made in admin.create_topics([NewTopic(f"events.{broker.prefix}", num_partitions=3, config=KEPT)]).values():
            made.result()
        with pytest.raises(SchemaError, match="3 partitions, not 1"):
            await broker.open()

    async def test_deleted_topics_are_reported_and_not_taken_for_empty_ones(self, broker: Broker) -> None:
        store = await broker.open()
        await store.add_events([new_event("t") for _ in range(5)])
        store._node._inbox._timeout = 0.5
        admin = AdminClient(bootstrap(broker))
        for gone in admin.delete_topics([f"{broker.prefix}.control", f"events.{broker.prefix}"]).values():
            gone.result()

        async def add_until_refused() -> None:
            while True:  # the controller has deleted them, the broker may learn it later
                await store.add_events([new_event("t")])

        with pytest.raises((StoreUnavailableError, SchemaError, DamagedLogError)):
            await asyncio.wait_for(add_until_refused(), 30)
        with pytest.raises((StoreUnavailableError, SchemaError, DamagedLogError)):
            await store.verify()

    async def test_a_missing_broker_is_reported_within_the_timeout(self) -> None:
        with pytest.raises(StoreUnavailableError):
            await open_store("kafka://127.0.0.1:1?timeout=0.3")

    @pytest.mark.parametrize(
        "url", ["kafka://", "kafka://user:pw@host:1", "kafka://host:1?replication=0", "kafka://h?x=1"]
    )
    async def test_an_invalid_url_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as refused:
            await open_store(url)
        assert "pw" not in str(refused.value)

    async def test_a_second_snapshot_writes_only_what_changed(self, broker: Broker) -> None:
        store = await broker.open()
        await store.add_events([new_event("t") for _ in range(2000)])
        assert await store._node.snapshot()
        before = self._state_records(broker)
        await store.stop_bus("b")
        assert await store._node.snapshot()
        assert self._state_records(broker) - before < before

    async def test_an_unreadable_manifest_is_reported_and_can_be_replaced(self, broker: Broker) -> None:
        store = await broker.open()
        await store.add_events([new_event("t")])
        assert await store._node.snapshot()
        producer = Producer(bootstrap(broker))
        producer.produce(f"{broker.prefix}.snapshots", key=MANIFEST_KEY, value=b"what is this")
        assert producer.flush(10) == 0
        with pytest.raises(SchemaError, match="is no snapshot of durabus"):
            await broker.open()
        producer.produce(f"{broker.prefix}.snapshots", key=MANIFEST_KEY, value=None)
        assert producer.flush(10) == 0
        await store.add_events([new_event("t")])
        assert await store._node.snapshot()
        assert (await (await broker.open()).counts()).pending == 2

    async def test_a_snapshot_waits_for_room_on_its_way(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        refused: set[bytes] = set()

        class Full(Producer):
            def produce(self, topic: str, **record: Any) -> None:  # type: ignore[override]
                if record["key"] not in refused:
                    refused.add(record["key"])
                    raise BufferError
                super().produce(topic, **record)

        monkeypatch.setattr("durabus.stores.kafka.snapshots.Producer", Full)
        store = await broker.open()
        assert await store._node.snapshot()
        assert MANIFEST_KEY in refused

    async def test_parts_older_than_the_manifest_are_not_taken_for_the_snapshot(self, broker: Broker) -> None:
        """A committed transaction becomes visible topic by topic: a reader may see some of it."""
        store = await broker.open()
        await store.add_events([new_event("t") for _ in range(5)])
        assert await store._node.snapshot()
        snapshots = store._node._transport.snapshots
        manifest = await snapshots.newest()
        assert manifest is not None
        parts = [part async for part in snapshots.read(manifest)]
        producer = Producer(bootstrap(broker))
        events = next(part for part in parts if part.table == "events")
        producer.produce(f"{broker.prefix}.events", key=events.key.encode(), value=b"older", partition=0)
        producer.flush()
        with pytest.raises(GapError):
            [part async for part in snapshots.read(manifest)]

    def _state_records(self, broker: Broker) -> int:
        consumer = Consumer({**bootstrap(broker), "group.id": "x"})
        topics = (f"{broker.prefix}.{table}" for table in ("events", "event_log", "locks", "replica"))
        total = sum(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1] for topic in topics)
        consumer.close()
        return total
