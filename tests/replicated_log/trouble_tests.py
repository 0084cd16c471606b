"""What the stores of both brokers must survive: a server that is slow, a network that is cut. Subclass it."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.replicated_log.broker_tests import Broker, publish_for_certain, work
from tests.replicated_log.pictures import pictures
from tests.servers.proxy import Proxy

from durabus import new_event
from durabus.model.query import Counts
from durabus.testing.servers.server import Server

EVENTS = 300
BATCH = 10


async def each_once(broker: Broker, trouble: Callable[[], Awaitable[None]]) -> None:
    """Publish and complete on two nodes during the fault and after it; then check that each event completed once."""
    nodes = [await broker.open(timeout=10) for _ in range(2)]
    new = [[new_event("t", {"n": n + m}) for m in range(BATCH)] for n in range(0, EVENTS, BATCH)]
    done: list[int] = []
    over = asyncio.Event()

    async def publish() -> None:
        for batch in new[:-1]:
            await publish_for_certain(nodes[0], batch)
        await over.wait()
        await publish_for_certain(nodes[0], new[-1])

    async def make_trouble() -> None:
        await trouble()
        over.set()

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        group.create_task(publish())
        group.create_task(make_trouble())
        for node in nodes:
            group.create_task(work(node, done, EVENTS))
    assert len(done) == len(set(done)) == EVENTS
    assert await nodes[1].counts() == Counts(completed=EVENTS)
    assert {entry.attempt for entry in (await nodes[0].read_log(limit=10_000)).entries} == {0, 1}
    first, second = await pictures(*nodes)
    assert first == second


@pytest.mark.timeout(120)
class BrokerTroubleTests:
    """``own_server`` may be stopped; ``behind`` is one whose clients all go through a proxy."""

    cuts = 3

    @pytest.fixture
    def own_server(self) -> Server:
        raise NotImplementedError

    async def test_a_broker_that_stands_still_now_and_then_loses_nothing(self, own_server: Server) -> None:
        async def stand_still() -> None:
            for _ in range(2):
                await asyncio.sleep(0.05)
                os.kill(own_server.pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(0.4)
                finally:
                    os.kill(own_server.pid, signal.SIGCONT)

        async with AsyncExitStack() as stack:
            await each_once(Broker(own_server.url, stack), stand_still)

    async def test_a_network_that_is_cut_between_request_and_reply_does_nothing_twice(self, behind: Proxy) -> None:
        async def cut() -> None:
            for _ in range(self.cuts):
                behind.swallow_answers = 1
                while behind.swallow_answers:  # noqa: ASYNC110  (the proxy's loop is this one)
                    await asyncio.sleep(0.005)

        async with AsyncExitStack() as stack:
            await each_once(Broker(behind.url, stack), cut)
