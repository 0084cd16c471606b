"""What both brokers' nodes do when the broker's log is not the one that they wrote and read. Subclass it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.replicated_log.broker_tests import Broker, read_again, stop_reading
from tests.replicated_log.pictures import pictures

from durabus import new_event
from durabus.errors import DamagedLogError
from durabus.stores.replicated_log.public_lane import public_record
from durabus.stores.replicated_log.records import label, seal
from durabus.stores.replicated_log.store import ReplicatedLogStore


async def told(store: ReplicatedLogStore, within: float = 20) -> str:
    """Return the error that a stopped store raises."""

    async def ask_on() -> None:
        while True:  # the node may not have looked yet
            await store.counts()

    with pytest.raises(DamagedLogError) as refused:
        await asyncio.wait_for(ask_on(), within)
    with pytest.raises(DamagedLogError):
        await store.add_events([new_event("t")])
    return str(refused.value)


class BrokerDamageTests:
    """Tests of damaged logs. A subclass implements the methods that damage the log of its broker."""

    @pytest.fixture
    def server_url(self) -> str:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shorten the waits for a new leader: a single server has none."""
        monkeypatch.setattr("durabus.stores.replicated_log.records.SETTLED_WITHIN", 0.2)
        monkeypatch.setattr("durabus.stores.replicated_log.records.PRESENT_WITHIN", 0.2)

    @pytest.fixture
    async def broker(self, server_url: str) -> AsyncIterator[Broker]:
        async with AsyncExitStack() as stack:
            yield Broker(server_url, stack)

    async def write(self, broker: Broker, lane: str, headers: dict[str, str], body: bytes) -> None:
        raise NotImplementedError

    async def make_anew(self, broker: Broker, *, records: int) -> None:
        raise NotImplementedError

    async def delete(self, broker: Broker) -> None:
        raise NotImplementedError

    async def trim_all(self, broker: Broker) -> None:
        raise NotImplementedError

    @pytest.mark.parametrize("lane", ["control", "public"])
    async def test_garbage_with_our_header_stops_every_node(self, broker: Broker, lane: str) -> None:
        stores = [await broker.open() for _ in range(2)]
        await stores[0].add_events([new_event("t")])
        await self.write(broker, lane, {"durabus-crc": "12345678"}, b'"garbage"')
        texts = {await told(store) for store in stores}
        assert len(texts) == 1
        (text,) = texts
        assert broker.prefix in text
        assert "written with the checksum 12345678" in text
        with pytest.raises(DamagedLogError) as refused:
            await broker.open()
        again = await broker.open(skip_record=refused.value.position)
        other = await broker.open(skip_record=refused.value.position)
        await again.add_events([new_event("t")])
        one, two = await pictures(again, other)
        assert one == two

    @pytest.mark.parametrize("lane", ["control", "public"])
    async def test_a_record_of_ours_with_one_changed_bit_stops_the_node(self, broker: Broker, lane: str) -> None:
        store = await broker.open()
        if lane == "control":
            (body,) = seal(b"\x90", session="x", number=1, low=0, public_seen=0, largest=1000)
            headers = label(body)
        else:
            record = public_record(new_event("t", {"n": 2}), session="x", number=1, place=0, count=1)
            body, headers = record.body, dict(record.headers)
        await self.write(broker, lane, headers, body)
        await store.counts()
        await self.write(broker, lane, headers, body[:-2] + bytes([body[-2] ^ 1]) + body[-1:])
        assert "checksum" in await told(store)

    @pytest.mark.parametrize("records", [0, 50])
    async def test_a_log_that_was_made_anew_stops_the_node(self, broker: Broker, records: int) -> None:
        store = await broker.open()
        await store.add_events([new_event("t") for _ in range(5)])
        await store.snapshot()
        await self.make_anew(broker, records=records)
        assert "deleted and created again" in await told(store)
        with pytest.raises(DamagedLogError):
            await broker.open()  # the snapshot is of another log

    async def test_a_log_that_is_gone_stops_the_node(self, broker: Broker) -> None:
        store = await broker.open()
        await store.add_events([new_event("t") for _ in range(5)])
        await self.delete(broker)
        assert "does not exist any more" in await told(store)

    async def test_records_that_were_deleted_before_a_node_read_them_stop_it(self, broker: Broker) -> None:
        store, behind = await broker.open(), await broker.open()
        await behind._node._own.run(stop_reading(behind._node))
        await store.add_events([new_event("t") for _ in range(3)])
        await self.trim_all(broker)
        await store.add_events([new_event("t")])
        await behind._node._own.run(read_again(behind._node))
        assert "are gone" in await told(behind)
        with pytest.raises(DamagedLogError, match="let it write a snapshot"):
            await broker.open()
        assert await store.snapshot()
        assert (await (await broker.open()).counts()).pending == 4

    async def test_a_node_continues_the_same_log_after_its_connection_was_cut(self, broker: Broker) -> None:
        store, other = await broker.open(), await broker.open()
        for _ in range(3):
            await store.add_events([new_event("t")])
            await store._node._own.run(stop_reading(store._node))
            await other.stop_bus("b")
            await store._node._own.run(read_again(store._node))
            one, two = await pictures(store, other)
            assert one == two
