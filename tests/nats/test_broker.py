"""The NATS store among plain clients, and through its server's troubles."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from tests.replicated_log.broker_tests import Broker, BrokerTests, read_again, stop_reading
from tests.replicated_log.pictures import pictures
from tests.servers.presence import installed

from durabus import new_event
from durabus.errors import DamagedLogError, SchemaError, StoreUnavailableError
from durabus.stores.nats.follower import NatsFollower
from durabus.stores.replicated_log.transport import UnknownOutcomeError
from durabus.testing.servers.nats import NatsServer
from durabus.testing.servers.server import Server

READER = """
import asyncio, json, sys
import nats

async def main(url, prefix, count):
    client = await nats.connect(url)
    left, done = [int(count)], asyncio.Event()

    async def show(message):
        print(json.dumps([dict(message.headers), message.data.decode()]))
        left[0] -= 1
        if left[0] == 0:
            done.set()

    await client.subscribe(f"{prefix}.events.>", cb=show)
    await client.flush()
    await client.flush()  # the PING of the first may overtake the subscription
    print("reading", flush=True)
    await asyncio.wait_for(done.wait(), 30)
    await client.close()

asyncio.run(main(*sys.argv[1:]))
sys.exit("durabus" in sys.modules)
"""

WRITER = """
import asyncio, json, sys
import nats

async def main(url, prefix, lane):
    client = await nats.connect(url)
    for type_, headers, body in json.load(sys.stdin):
        subject = f"{prefix}.control" if lane == "control" else f"{prefix}.events.{type_}"
        await client.jetstream().publish(subject, body.encode(), headers=headers or None)
    await client.close()

asyncio.run(main(*sys.argv[1:]))
"""


class TestNats(BrokerTests):
    plain_reader = READER
    plain_writer = WRITER

    @pytest.fixture
    def server_url(self, nats_url: str) -> str:
        return nats_url

    @pytest.fixture
    def own_server(self) -> Iterator[Server]:
        with installed(NatsServer()) as server:
            yield server

    def records_left(self, broker: Broker) -> int:
        async def ask() -> int:
            client = await nats.connect(broker.server_url)
            info = await client.jetstream().stream_info(broker.prefix)
            await client.close()
            return info.state.messages

        return ThreadPoolExecutor(1).submit(asyncio.run, ask()).result()

    @pytest.mark.parametrize(
        ("setting", "value"),
        [("max_age", 60.0), ("max_msgs", 10), ("discard", DiscardPolicy.OLD), ("subjects", ["x.>"])],
    )
    async def test_a_stream_that_would_lose_records_is_refused(
        self, broker: Broker, setting: str, value: object
    ) -> None:
        client = await nats.connect(broker.server_url)
        config = StreamConfig(
            name=broker.prefix,
            subjects=[f"{broker.prefix}.control", f"{broker.prefix}.events.>"],
            discard=DiscardPolicy.NEW,
        )
        setattr(config, setting, value)
        await client.jetstream().add_stream(config)
        with pytest.raises(SchemaError, match=f"would lose or change records: .*{setting}"):
            await broker.open()
        await client.jetstream().delete_stream(broker.prefix)
        await client.close()

    async def test_a_stream_that_takes_our_subjects_is_reported(self, broker: Broker) -> None:
        client = await nats.connect(broker.server_url)
        await client.jetstream().add_stream(StreamConfig(name=f"{broker.prefix}x", subjects=[f"{broker.prefix}.>"]))
        with pytest.raises(SchemaError, match="another stream has"):
            await broker.open()
        await client.jetstream().delete_stream(f"{broker.prefix}x")
        await client.close()

    async def test_a_deleted_stream_is_reported_and_not_taken_for_an_empty_one(self, broker: Broker) -> None:
        store = await broker.open()
        await store.add_events([new_event("t") for _ in range(5)])
        store._node._inbox._timeout = 0.5
        client = await nats.connect(broker.server_url)
        await client.jetstream().delete_stream(broker.prefix)
        await client.close()
        with pytest.raises((StoreUnavailableError, SchemaError, DamagedLogError)):
            await store.add_events([new_event("t")])
        with pytest.raises((StoreUnavailableError, SchemaError, DamagedLogError)):
            await store.verify()

    async def test_a_full_stream_is_reported_at_once(self, broker: Broker) -> None:
        store = await broker.open()
        client = await nats.connect(broker.server_url)
        info = await client.jetstream().stream_info(broker.prefix)
        info.config.max_bytes = 20_000
        await client.jetstream().update_stream(info.config)
        batches = [[new_event("t", {"text": "x" * 1000})] for _ in range(100)]
        with pytest.raises(StoreUnavailableError, match="maximum bytes exceeded"):
            await asyncio.gather(*map(store.add_events, batches))
        info.config.max_bytes = -1
        await client.jetstream().update_stream(info.config)
        assert len(await store.add_events([new_event("t")])) == 1
        await client.close()

    async def test_what_was_read_before_the_reading_failed_is_not_read_twice(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, other = await broker.open(), await broker.open()
        create, consumers = NatsFollower._create, list[str]()

        async def create_and_lose_the_reply(follower: NatsFollower, name: str, inbox: str) -> None:
            consumers.append(name)
            await create(follower, name, inbox)
            if consumers == [name]:
                while follower._reached < 20:  # noqa: ASYNC110  (it is read meanwhile)
                    await asyncio.sleep(0.001)
                raise UnknownOutcomeError("no reply")

        await store._node._own.run(stop_reading(store._node))
        await other.add_events([new_event("t") for _ in range(20)])
        monkeypatch.setattr(NatsFollower, "_create", create_and_lose_the_reply)
        await store._node._own.run(read_again(store._node))
        async with asyncio.timeout(20):
            while len(consumers) < 2:  # noqa: ASYNC110  (in the store's own thread)
                await asyncio.sleep(0.001)
        first, second = await pictures(store, other)
        assert first == second

    async def test_a_missing_server_is_reported_within_the_timeout(self) -> None:
        from durabus import open_store

        with pytest.raises(StoreUnavailableError, match=r"nats://127.0.0.1:1: .*Is the server running"):
            await open_store("nats://127.0.0.1:1?timeout=0.2")
