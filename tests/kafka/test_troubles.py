"""The Kafka store through a slow broker and a network that is cut."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.replicated_log.trouble_tests import BrokerTroubleTests
from tests.servers.presence import installed
from tests.servers.proxy import Proxy

from durabus.testing.servers.kafka import KafkaServer
from durabus.testing.servers.process import LOOPBACK, free_ports
from durabus.testing.servers.server import Server

pytestmark = pytest.mark.long


class BehindProxy(KafkaServer):
    """A broker that advertises the port of a proxy to its clients."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def _prepare(self) -> None:
        super()._prepare()
        own = f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{self._ports[0]}"
        text = self._properties.read_text()
        assert own in text
        self._properties.write_text(text.replace(own, f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{self._port}"))


class TestKafkaTroubles(BrokerTroubleTests):
    @pytest.fixture
    def own_server(self) -> Iterator[Server]:
        with installed(KafkaServer()) as server:
            yield server

    @pytest.fixture
    async def behind(self) -> AsyncIterator[Proxy]:
        (port,) = free_ports(1)
        with installed(BehindProxy(port)) as server:
            async with Proxy(server.url).running(port) as proxy:
                yield proxy
