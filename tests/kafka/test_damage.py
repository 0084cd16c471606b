"""The Kafka store when its topics lose, change or forget what nodes have read."""

import asyncio
from time import monotonic, sleep

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.kafka.test_broker import bootstrap
from tests.replicated_log.broker_tests import Broker
from tests.replicated_log.damage_tests import BrokerDamageTests, told

from durabus import new_event
from durabus.stores.kafka.layout import KEPT, KafkaLayout
from durabus.stores.replicated_log.records import label, seal


def lanes(broker: Broker) -> list[str]:
    layout = KafkaLayout(broker.prefix)
    return [layout.control, layout.public]


def delete_topics(broker: Broker) -> None:
    admin = AdminClient(bootstrap(broker))
    for gone in admin.delete_topics(lanes(broker)).values():
        gone.result()


def make_topics(broker: Broker, *, records: int) -> None:
    admin = AdminClient(bootstrap(broker))
    until = monotonic() + 10
    while True:  # the broker may not have forgotten the old ones yet
        topics = [NewTopic(name, num_partitions=1, config=KEPT) for name in lanes(broker)]
        try:
            for made in admin.create_topics(topics).values():
                made.result()
        except KafkaException:
            assert monotonic() < until
            sleep(0.05)
        else:
            break
    produce(broker, [(lane, {}, b"x") for lane in lanes(broker) for _ in range(records)])


def produce(broker: Broker, records: list[tuple[str, dict[str, str], bytes]]) -> None:
    producer = Producer(bootstrap(broker))
    for topic, headers, body in records:
        producer.produce(topic, value=body, headers=list(headers.items()), partition=0)
    assert producer.flush(20) == 0


class TestKafkaDamage(BrokerDamageTests):
    @pytest.fixture(autouse=True)
    def watchful(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durabus.stores.kafka.transport.WATCH_EVERY", 0.2)

    @pytest.fixture
    def server_url(self, kafka_url: str) -> str:
        return kafka_url

    async def write(self, broker: Broker, lane: str, headers: dict[str, str], body: bytes) -> None:
        topic = lanes(broker)[lane == "public"]
        await asyncio.to_thread(produce, broker, [(topic, headers, body)])

    async def make_anew(self, broker: Broker, *, records: int) -> None:
        await asyncio.to_thread(delete_topics, broker)
        await asyncio.to_thread(make_topics, broker, records=records)

    async def delete(self, broker: Broker) -> None:
        await asyncio.to_thread(delete_topics, broker)

    async def trim_all(self, broker: Broker) -> None:
        admin = AdminClient(bootstrap(broker))
        places = [TopicPartition(lane, 0, -1) for lane in lanes(broker)]
        for done in (await asyncio.to_thread(admin.delete_records, places)).values():
            await asyncio.to_thread(done.result)

    async def test_a_control_record_that_refers_to_public_ones_that_are_lost_stops_the_node(
        self, broker: Broker
    ) -> None:
        store = await broker.open()
        await store.add_events([new_event("t")])
        (body,) = seal(b"", session="", number=1, low=0, public_seen=100, largest=1000)
        await self.write(broker, "control", label(body), body)
        assert f"'{lanes(broker)[1]}' ends at 0" in await told(store)

    async def test_a_transaction_of_a_foreign_producer_leaves_legal_gaps_in_the_public_lane(
        self, broker: Broker
    ) -> None:
        store = await broker.open()
        await asyncio.to_thread(self._in_transactions, broker)
        async with asyncio.timeout(20):
            while (await store.counts()).pending < 1:  # noqa: ASYNC110  (it is in the log, but has no place yet)
                await asyncio.sleep(0.01)
        assert len(await store.add_events([new_event("t")])) == 1
        late = await broker.open()
        assert (await late.counts()).pending == 2

    def _in_transactions(self, broker: Broker) -> None:
        producer = Producer({**bootstrap(broker), "transactional.id": broker.prefix})
        producer.init_transactions(20)
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce(lanes(broker)[1], value=b"1", headers=[("event_type", b"t")])
            end(20)
