"""A store that cannot be opened raises one clear error and leaves nothing behind, and a second try works."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from tests.servers.presence import installed
from tests.servers.proxy import Proxy

from durabus import Event, EventBus, new_event, open_store
from durabus.errors import ConfigurationError, StoreError, StoreUnavailableError
from durabus.store.connect import make_store
from durabus.testing.servers.kafka import KafkaServer
from durabus.testing.servers.process import LOOPBACK, free_ports

SERVERS = ["postgresql", "redis", "nats", "kafka"]
WRONG = "n0tThePassword"


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    """Fail on errors that no caller gets and on sockets that stay open: warnings are errors here."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(str(context)))
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


@pytest.fixture
def server_url(request: pytest.FixtureRequest) -> str:
    name = request.param
    fixture = "postgresql_database" if name == "postgresql" else f"{name}_url"
    url: str = request.getfixturevalue(fixture)
    return url if name == "postgresql" else f"{url}?prefix=t{uuid4().hex[:12]}"


def at(url: str, *options: str, port: int | None = None, password: str | None = None) -> str:
    """Return the URL with another port or password, and more options."""
    parts = urlsplit(url)
    who, _, where = parts.netloc.rpartition("@")
    if password is not None:
        who = f"{who.partition(':')[0]}:{password}"
    if port is not None:
        where = f"{where.partition(':')[0]}:{port}"
    query = "&".join(filter(None, [parts.query, *options]))
    return urlunsplit(parts._replace(netloc=f"{who}@{where}" if who else where, query=query))


@pytest.mark.parametrize("server_url", ["postgresql", "redis", "nats"], indirect=True)
async def test_a_wrong_password_is_reported_at_once_and_not_shown(server_url: str) -> None:
    url = at(server_url, password=WRONG)
    store, began = make_store(url), monotonic()
    for _ in range(2):
        with pytest.raises((StoreError, ConfigurationError)) as refused:
            await store.open()
        text = str(refused.value)
        assert "password" in text
        assert urlsplit(url).netloc.rpartition("@")[2] in text
        assert WRONG not in text
    assert monotonic() - began < 10
    await store.close()


class KafkaWithPassword(KafkaServer):
    """A broker on which every client must log in as the user durabus."""

    password = "open-sesame"

    def _prepare(self) -> None:
        super()._prepare()
        port = f"{LOOPBACK}:{self._ports[0]}"
        text = self._properties.read_text().replace(f"PLAINTEXT://{port}", f"SASL_PLAINTEXT://{port}")
        users = f'username="durabus" password="{self.password}" user_durabus="{self.password}"'
        self._properties.write_text(
            f"{text}inter.broker.listener.name=SASL_PLAINTEXT\n"
            "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
            "listener.name.sasl_plaintext.plain.sasl.jaas.config="
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};\n"
        )


@pytest.mark.timeout(120)  # it starts a broker of its own
async def test_a_wrong_password_on_kafka_is_reported_and_not_shown() -> None:
    server = installed(KafkaWithPassword())
    await asyncio.to_thread(server.start)
    try:
        sasl = "client.security.protocol=SASL_PLAINTEXT&client.sasl.mechanism=PLAIN&client.sasl.username=durabus"
        with pytest.raises(StoreError, match=r"does not accept .*client\.sasl\.password") as refused:
            await open_store(f"{server.url}?timeout=3&{sasl}&client.sasl.password={WRONG}")
        assert urlsplit(server.url).netloc in str(refused.value)
        assert WRONG not in str(refused.value)
        store = await open_store(f"{server.url}?{sasl}&client.sasl.password={server.password}")
        await store.close()
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("server_url", SERVERS, indirect=True)
async def test_a_server_that_is_away_is_reported_and_the_store_can_be_opened_when_it_is_back(server_url: str) -> None:
    (port,) = free_ports(1)
    wait = "connect_timeout" if server_url.startswith("postgresql") else "timeout"
    store = make_store(at(server_url, f"{wait}=2", port=port))
    with pytest.raises(StoreUnavailableError) as refused:
        await store.open()
    assert f"127.0.0.1:{port}" in str(refused.value)
    async with Proxy(server_url).running(port):
        await store.open()
        assert len(await store.add_events([new_event("t")])) == 1
        await store.close()


@asynccontextmanager
async def silent_server(port: int) -> AsyncIterator[asyncio.Event]:
    """A server that takes connections and says nothing. The event is set at the first connection."""
    connected, writers = asyncio.Event(), list[asyncio.StreamWriter]()

    def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        connected.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", port)
    yield connected
    silent.close()
    for writer in writers:
        writer.close()


async def cancelled_at(connected: asyncio.Event, opening: asyncio.Task[Any]) -> None:
    """Cancel an opening as soon as it has connected. It ends soon."""
    await asyncio.wait_for(connected.wait(), 10)
    began = monotonic()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert monotonic() - began < 10


@pytest.mark.parametrize("server_url", SERVERS, indirect=True)
async def test_an_open_that_is_cancelled_leaves_nothing_and_can_be_repeated(server_url: str) -> None:
    (port,) = free_ports(1)
    store = make_store(at(server_url, port=port))
    async with silent_server(port) as connected:
        await cancelled_at(connected, asyncio.create_task(store.open()))
    async with Proxy(server_url).running(port):
        await asyncio.wait_for(store.open(), 30)
        assert len(await store.add_events([new_event("t")])) == 1
        await store.close()


@pytest.mark.parametrize("server_url", SERVERS, indirect=True)
async def test_a_bus_whose_start_is_cancelled_can_be_started_again_and_handles_events(server_url: str) -> None:
    (port,) = free_ports(1)
    bus, handled = EventBus(at(server_url, port=port)), list[str]()

    @bus.on("t", id="handler")
    async def handle(event: Event) -> None:
        handled.append(event.event_id)

    async with silent_server(port) as connected:
        await cancelled_at(connected, asyncio.create_task(bus.start()))
    async with Proxy(server_url).running(port):
        await asyncio.wait_for(bus.start(), 30)
        event_id = await bus.publish("t")
        assert handled == [event_id]
        await bus.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///x.db?colour=red",
        "postgresql://u:s3cret@h/d?colour=red",
        "redis://:s3cret@h/0?colour=red",
        "nats://u:s3cret@h?colour=red",
        "kafka://h?colour=red",
        "kafka://h?client.colour=red",
    ],
)
async def test_an_unknown_option_is_named_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigurationError, match="colour") as refused:
        await open_store(url)
    assert "s3cret" not in str(refused.value)
