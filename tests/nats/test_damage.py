"""The NATS store when its stream loses, changes or forgets what nodes have read."""

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client
from tests.replicated_log.broker_tests import Broker, read_again, stop_reading
from tests.replicated_log.damage_tests import BrokerDamageTests, told

from durabus import new_event
from durabus.errors import DamagedLogError, SchemaError
from durabus.stores.nats.layout import NatsLayout


class TestNatsDamage(BrokerDamageTests):
    @pytest.fixture
    def server_url(self, nats_url: str) -> str:
        return nats_url

    @pytest.fixture
    async def client(self, broker: Broker) -> AsyncIterator[Client]:
        client = await nats.connect(broker.server_url)
        yield client
        await client.close()

    async def write(self, broker: Broker, lane: str, headers: dict[str, str], body: bytes) -> None:
        client = await nats.connect(broker.server_url)
        layout = NatsLayout(broker.prefix)
        subject = layout.control if lane == "control" else layout.subject("t")
        await client.jetstream().publish(subject, body, headers=headers or None)
        await client.close()

    async def make_anew(self, broker: Broker, *, records: int) -> None:
        """Delete the stream and make it again, with some foreign records."""
        client = await nats.connect(broker.server_url)
        stream = client.jetstream()
        config = (await stream.stream_info(broker.prefix)).config
        await stream.delete_stream(broker.prefix)
        await stream.add_stream(config)
        for _ in range(records):
            await stream.publish(NatsLayout(broker.prefix).control, b"x")
        await client.close()

    async def delete(self, broker: Broker) -> None:
        client = await nats.connect(broker.server_url)
        await client.jetstream().delete_stream(broker.prefix)
        await client.close()

    async def trim_all(self, broker: Broker) -> None:
        client = await nats.connect(broker.server_url)
        await client.jetstream().purge_stream(broker.prefix)
        await client.close()

    async def test_a_record_that_was_deleted_stops_the_nodes_that_have_not_read_it(
        self, broker: Broker, client: Client
    ) -> None:
        store, behind = await broker.open(), await broker.open()
        await behind._node._own.run(stop_reading(behind._node))
        await store.add_events([new_event("t") for _ in range(3)])
        (last,) = store._node.replica.position
        await client.jetstream().delete_msg(broker.prefix, last - 1)
        await behind._node._own.run(read_again(behind._node))
        assert f"records {last - 1} to {last - 1}" in await told(behind)
        with pytest.raises(DamagedLogError, match="no snapshot covers them"):
            await broker.open()
        assert await store.snapshot()  # the node that has read it can heal the store
        assert (await (await broker.open()).counts()).pending == 3

    async def test_a_damaged_snapshot_is_reported_and_can_be_replaced(self, broker: Broker, client: Client) -> None:
        store = await broker.open()
        await store.add_events([new_event("t")])
        assert await store.snapshot()
        stream, layout = client.jetstream(), NatsLayout(broker.prefix)
        kept = await stream.get_last_msg(layout.snapshots, f"{broker.prefix}.snapshot.chunk.>")
        assert kept.subject is not None
        assert kept.data is not None
        await stream.publish(kept.subject, kept.data[:-1] + bytes([kept.data[-1] ^ 1]))
        with pytest.raises(SchemaError, match=r"is damaged|cannot be read"):
            await broker.open()
        await stream.publish(layout.manifest, b"what is this")
        with pytest.raises(SchemaError, match="is damaged"):
            await broker.open()
        await stream.purge_stream(layout.snapshots)
        assert await store.snapshot()
        assert (await (await broker.open()).counts()).pending == 1
