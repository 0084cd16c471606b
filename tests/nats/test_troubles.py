"""The NATS store through a slow server and a network that is cut."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.replicated_log.trouble_tests import BrokerTroubleTests
from tests.servers.presence import installed
from tests.servers.proxy import Proxy

from durabus.testing.servers.nats import NatsServer
from durabus.testing.servers.server import Server


class TestNatsTroubles(BrokerTroubleTests):
    @pytest.fixture
    def own_server(self) -> Iterator[Server]:
        with installed(NatsServer()) as server:
            yield server

    @pytest.fixture
    async def behind(self, nats_url: str) -> AsyncIterator[Proxy]:
        async with Proxy(nats_url).running() as proxy:
            yield proxy
