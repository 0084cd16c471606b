"""What the stores of both brokers must survive: restarts, junk, trimming, foreign clients. Subclass it."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import time
from typing import Any
from uuid import uuid4

import pytest
from tests.processes.fleet import Fleet, judge
from tests.replicated_log.pictures import pictures

from durabus import EventBus, EventQueue, new_event, open_store
from durabus.errors import LeaseLost, SchemaError, StoreUnavailableError
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import NewEvent
from durabus.model.query import Counts
from durabus.model.settlement import Complete, Settled
from durabus.stores.replicated_log.node import Node
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.testing.servers.server import Server


class Broker:
    """A server and a prefix on it, and stores that are closed at the end."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.server_url = url
        self.prefix = f"t{uuid4().hex[:12]}"
        self._stack = stack

    @property
    def url(self) -> str:
        return f"{self.server_url}?prefix={self.prefix}"

    async def open(self, **options: object) -> ReplicatedLogStore:
        extra = "".join(f"&{name}={value}" for name, value in options.items())
        store = await open_store(self.url + extra)
        assert isinstance(store, ReplicatedLogStore)
        self._stack.push_async_callback(store.close)
        return store


def request(limit: int = 10, **options: Any) -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=limit, **options)


async def publish_for_certain(store: ReplicatedLogStore, new: list[NewEvent]) -> None:
    """Repeat the same publish until it succeeds, as the contract says."""
    while True:
        try:
            await store.add_events(new)
        except StoreUnavailableError:
            continue
        return


async def work(store: ReplicatedLogStore, done: list[int], total: int) -> None:
    """Claim and complete until all events are done. Calls without a reply are repeated."""
    while len(done) < total:
        asked = request(lease=10.0)
        claims = None
        while claims is None:
            try:
                claims = await store.claim_next_events(asked)
            except StoreUnavailableError:
                continue
        settled = None
        while settled is None:
            try:
                settled = await store.settle_events([Complete(claim.ref) for claim in claims])
            except StoreUnavailableError:
                continue
        done.extend(outcome.id for outcome in settled.outcomes if isinstance(outcome, Settled))
        if not claims:
            await asyncio.sleep(0.02)


async def stop_reading(node: Node) -> None:
    """Keep the node from reading, as if its process did not run."""
    (reading,) = [task for task in node._tasks._tasks if getattr(task.get_coro(), "__name__", "") == "_read"]
    reading.cancel()
    await asyncio.wait([reading])


async def read_again(node: Node) -> None:
    node._tasks.spawn(node._read())


class BrokerTests:
    """``plain_reader`` and ``plain_writer`` are scripts that know the broker's own client and nothing of durabus."""

    plain_reader: str
    plain_writer: str
    crashes: tuple[bool, ...] = (True, False)
    """How the server goes down each time: killed, or stopped."""

    @pytest.fixture
    def server_url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def own_server(self) -> Server:
        """A server that a test may restart."""
        raise NotImplementedError

    @pytest.fixture
    async def broker(self, server_url: str) -> AsyncIterator[Broker]:
        async with AsyncExitStack() as stack:
            yield Broker(server_url, stack)

    def run(self, script: str, broker: Broker, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", script, broker.server_url, broker.prefix, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def write(self, broker: Broker, lane: str, records: list[tuple[str, dict[str, str], str]]) -> None:
        writer = self.run(self.plain_writer, broker, lane)
        writer.communicate(json.dumps(records), timeout=30)
        assert writer.returncode == 0

    async def test_a_plain_consumer_reads_every_event_while_workers_process_them(self, broker: Broker) -> None:
        store = await broker.open()
        reader = self.run(self.plain_reader, broker, "130")
        assert reader.stdout is not None
        assert await asyncio.to_thread(reader.stdout.readline) == "reading\n"
        new = [new_event("order.placed", {"n": n}, metadata={"traceparent": f"00-{n}"}) for n in range(100)]
        new += [new_event("odd.ünï%type", {"n": n}, bus="ünï bus", parent_id=new[0].event_id) for n in range(30)]
        done: list[int] = []
        worker = asyncio.create_task(work(store, done, 100))
        for start in range(0, 130, 13):
            await store.add_events(new[start : start + 13])
        await worker
        output, _ = await asyncio.to_thread(reader.communicate, timeout=30)
        assert reader.returncode == 0
        seen = {headers["event_id"]: (headers, body) for headers, body in map(json.loads, output.splitlines())}
        assert seen.keys() == {event.event_id for event in new}
        for event in new:
            headers, body = seen[event.event_id]
            assert json.loads(body) == json.loads(event.payload_json)
            assert (headers["bus_id"], headers["event_type"]) == (event.bus, event.type)
            assert headers.get("event_parent_id") == event.parent_id
            assert ("traceparent" in headers) == (event.metadata_json is not None)

    async def test_events_of_a_foreign_producer_are_handled(self, broker: Broker) -> None:
        async with EventBus(broker.url) as bus:
            got: list[tuple[str, Any]] = []

            @bus.on("shop.*")
            async def handle(event: Any) -> None:
                got.append((event.type, event.payload))

            self.write(
                broker,
                "public",
                [
                    ("shop.opened", {"durabus-manual-time": "9000000000.0"}, '{"n": 1}'),
                    ("shop.closed", {"event_id": "0190f0e4-0000-7000-8000-000000000001"}, "[2]"),
                    ("shop.broken", {}, "no json"),
                    ("shop.closed", {"event_id": "0190f0e4-0000-7000-8000-000000000001"}, "[2]"),
                ],
            )
            async with asyncio.timeout(20):
                while len(got) < 2:  # noqa: ASYNC110  (the bus has its own loop for it)
                    await asyncio.sleep(0.01)
            assert sorted(got) == [("shop.closed", [2]), ("shop.opened", {"n": 1})]
            assert isinstance(bus.store, ReplicatedLogStore)
            assert bus.store.skipped_records == 1
            assert await bus.store.now() == pytest.approx(time(), abs=60)  # strangers do not set the clock

    async def test_a_lease_ends_by_the_brokers_clock_and_its_holder_is_refused(self, broker: Broker) -> None:
        first, second = await broker.open(), await broker.open()
        await first.add_events([new_event("t")])
        (lost,) = await first.claim_next_events(request(lease=1.5))
        claims: list[Claim] = []
        async with asyncio.timeout(30):
            while not claims:
                await second.wait_for_work("default", timeout=5)
                claims = await second.claim_next_events(request())
        assert claims[0].event.fence > lost.event.fence
        (outcome,) = (await first.settle_events([Complete(lost.ref)])).outcomes
        assert isinstance(outcome, LeaseLost)
        before, _, taken = (await first.read_event_log(lost.event.id))[-3:]
        expires_ts = lost.event.expires_ts or 0.0
        assert taken.at_ts >= expires_ts == pytest.approx(before.at_ts + 1.5)
        assert await first.now() == pytest.approx(time(), abs=60)

    async def test_junk_in_the_control_lane_is_skipped_by_every_node(self, broker: Broker) -> None:
        store = await broker.open()
        self.write(broker, "control", [("", {}, "hello"), ("", {}, "{}"), ("", {}, "x" * 5000)])
        assert len(await store.add_events([new_event("t")])) == 1
        late = await broker.open()
        assert store.skipped_records == late.skipped_records == 3
        first, second = await pictures(store, late)
        assert first == second

    async def test_a_node_of_another_cluster_is_refused(self, broker: Broker) -> None:
        await broker.open(cluster="blue")
        with pytest.raises(SchemaError, match=r"cluster='blue'.*another prefix"):
            await broker.open(cluster="green")

    async def test_two_prefixes_on_one_server_do_not_meet(self, broker: Broker) -> None:
        async with AsyncExitStack() as stack:
            one, two = await broker.open(), await Broker(broker.server_url, stack).open()
            await one.add_events([new_event("t")])
            assert await two.counts() == Counts()
            assert await two.claim_next_events(request()) == []

    async def test_a_node_starts_from_a_snapshot_and_the_log_is_trimmed(self, broker: Broker) -> None:
        store = await broker.open(public_kept=0)
        await store.add_events([new_event("t", {"n": n}) for n in range(1000)])
        claims = await store.claim_next_events(request(limit=300))
        await store.settle_events([Complete(claim.ref) for claim in claims])
        await store.claim_next_events(request(limit=100, lease=600.0))
        assert await store._node.snapshot()
        await store.add_events([new_event("t", {"n": n}) for n in range(1000, 1100)])
        assert await store._node.snapshot()
        assert await store._node.snapshot()
        await store.add_events([new_event("t") for _ in range(10)])
        late = await broker.open(public_kept=0)
        first, second = await pictures(store, late)
        assert first == second
        assert await late.counts() == Counts(pending=710, processing=100, completed=300)
        assert self.records_left(broker) < 100

    async def test_a_node_far_behind_begins_anew(self, broker: Broker) -> None:
        behind, store = await broker.open(public_kept=0), await broker.open(public_kept=0)
        await behind.add_events([new_event("t")])
        await behind._node._own.run(stop_reading(behind._node))
        await store.add_events([new_event("t", {"n": n}) for n in range(100)])
        for _ in range(3):
            assert await store._node.snapshot()
        place = behind._node.replica.position
        await behind._node._own.run(read_again(behind._node))
        assert (await behind.counts()).pending == 101
        assert behind._node.replica.position > place
        first, second = await pictures(store, behind)
        assert first == second
        assert len(await behind.claim_next_events(request(limit=200))) == 101

    def records_left(self, broker: Broker) -> int:
        """Return how many records both lanes hold."""
        raise NotImplementedError

    async def test_a_zombie_snapshotter_is_refused(self, broker: Broker) -> None:
        zombie, alive = await broker.open(), await broker.open()
        await zombie.add_events([new_event("t")])
        assert await alive._node._own.run(alive._node._snapshotter._write(9))
        await zombie.add_events([new_event("t")])
        assert not await zombie._node._own.run(zombie._node._snapshotter._write(8))
        late = await broker.open()
        first, second = await pictures(alive, late)
        assert first == second

    async def test_a_frozen_worker_cannot_write_and_racing_ones_do_each_event_once(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        store = await broker.open()
        with Fleet(broker.url, tmp_path / "ledger", handler_seconds=0.2, lease=2.0, concurrency=20) as fleet:
            killed, frozen, _ = fleet.start(), fleet.start(), fleet.start()
            async with asyncio.timeout(30):
                while {worker.pid for worker in fleet.workers} - {pid for _, _, pid in fleet.lines("up")}:  # noqa: ASYNC110  (files)
                    await asyncio.sleep(0.01)
            await EventQueue(store).publish_batch([new_event("race.event", {"number": n}) for n in range(400)])
            async with asyncio.timeout(40):
                while {killed.pid, frozen.pid} - {pid for _, _, pid in fleet.lines("start")}:  # noqa: ASYNC110  (files)
                    await asyncio.sleep(0.01)
                frozen.send_signal(signal.SIGSTOP)
                asyncio.get_running_loop().call_later(3.0, frozen.send_signal, signal.SIGCONT)
                fleet.kill(killed)
                while (await store.counts()).completed < 400:  # noqa: ASYNC110  (other processes work)
                    await asyncio.sleep(0.2)
            await fleet.stop()
        verdict = await judge(store)
        assert verdict.published == len(verdict.terminals) == verdict.terminals.total() == 400
        assert (verdict.stale_writes_accepted, verdict.fences_not_rising) == (0, 0)
        assert verdict.takeovers > 0

    @pytest.mark.timeout(120)
    async def test_nothing_is_lost_while_the_server_is_killed_and_restarted(self, own_server: Server) -> None:
        async with AsyncExitStack() as stack:
            broker = Broker(own_server.url, stack)
            nodes = [await broker.open(timeout=10) for _ in range(2)]
            new = [[new_event("t", {"n": n * 10 + m}) for m in range(10)] for n in range(60)]
            done: list[int] = []

            async def publish() -> None:
                for batch in new:
                    await publish_for_certain(nodes[0], batch)
                    await asyncio.sleep(0.02)

            async def trouble() -> None:
                for immediate in self.crashes:
                    await asyncio.sleep(0.4)
                    await asyncio.to_thread(own_server.restart, immediate=immediate)

            async with asyncio.timeout(100), asyncio.TaskGroup() as group:
                group.create_task(publish())
                group.create_task(trouble())
                for node in nodes:
                    group.create_task(work(node, done, 600))
            assert len(done) == len(set(done)) == 600
            assert await nodes[1].counts() == Counts(completed=600)
            first, second = await pictures(*nodes)
            assert first == second
