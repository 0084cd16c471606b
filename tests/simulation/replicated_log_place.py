"""The replicated log of NATS and Kafka on a simulated broker. Each process has its own replica."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from unittest.mock import patch

from tests.replicated_log.simulated_log import SimulatedLog
from tests.replicated_log.simulated_store import FEATURES

import durabus.stores.replicated_log.node
from durabus.errors import StoreUnavailableError
from durabus.store.contract import EventStore
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.stores.replicated_log.transport import (
    BrokerRecord,
    GapError,
    Manifest,
    Position,
    PublicRecord,
    SnapshotPart,
)
from durabus.testing.simulation.loop import THREAD, VirtualLoop, context_of
from durabus.testing.simulation.network import Network
from durabus.testing.simulation.places import StorePlace, network_to, with_presence
from durabus.testing.simulation.processes import Host
from durabus.testing.simulation.scenario import Scenario
from durabus.testing.simulation.world import WorldClock

T = TypeVar("T")

READ_WAIT = 2.0
RETRY_AFTER = 0.1
LARGEST = 100_000
SNAPSHOT_EVERY = 60


class Broker:
    """The verbs of the server. Both lanes share one sequence, as in a NATS stream."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._log = SimulatedLog(WorldClock(loop), largest=LARGEST)
        self._changed: list[asyncio.Future[None]] = []
        self.damages = 0
        """How many of the next records that are read have a changed byte: their copies are damaged."""

    async def append(self, records: Sequence[tuple[str | None, Mapping[str, str], bytes]]) -> None:
        for record in records:
            self._log.store(*record)
        for waiting in self._changed:
            if not waiting.done():
                waiting.set_result(None)
        self._changed.clear()

    async def head(self) -> Position:
        return self._log.head

    async def read(self, after: Position, first: bool) -> list[BrokerRecord]:
        """Return new records; wait a while if there are none. A ``first`` read also returns the record at ``after``."""
        if not self._log.after(after):
            waiting = asyncio.get_running_loop().create_future()
            self._changed.append(waiting)
            await asyncio.wait([waiting], timeout=READ_WAIT)
        return [*(self._log.at(after) if first else ()), *map(self._copied, self._log.after(after))]

    def _copied(self, entry: BrokerRecord) -> BrokerRecord:
        if self.damages == 0:
            return entry
        self.damages -= 1
        return entry._replace(body=entry.body[:-1] + bytes([entry.body[-1] ^ 1]))

    async def newest_snapshot(self) -> Manifest | None:
        return self._log.newest_snapshot

    async def read_snapshot(self, manifest: Manifest) -> list[SnapshotPart]:
        return self._log.parts(manifest)

    async def write_snapshot(self, manifest: Manifest, parts: list[SnapshotPart], fence: int) -> bool:
        return self._log.keep_snapshot(manifest, parts, fence)

    async def trim(self, control: Position) -> None:
        self._log.trim(control)


class BrokerSnapshots:
    """``Snapshots`` through the network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def newest(self) -> Manifest | None:
        manifest: Manifest | None = await self._network.call("newest_snapshot", (), {})
        return manifest

    async def read(self, manifest: Manifest) -> AsyncIterator[SnapshotPart]:
        parts: list[SnapshotPart] = await self._network.call("read_snapshot", (manifest,), {})
        for part in parts:
            yield part

    async def write(self, manifest: Manifest, parts: AsyncIterator[SnapshotPart], *, fence: int) -> bool:
        whole = [part async for part in parts]
        written: bool = await self._network.call("write_snapshot", (manifest, whole, fence), {})
        return written


class BrokerTransport:
    """``Transport`` through the network."""

    name = "the simulated log"
    largest = LARGEST

    def __init__(self, network: Network) -> None:
        self._network = network
        self.snapshots = BrokerSnapshots(network)

    async def open(self) -> None:
        pass

    async def verify(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def refusal(self, record: PublicRecord) -> str | None:
        return f"{len(record.body)} bytes are too many" if len(record.body) > self.largest else None

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        await self._ask("append", [(record.type, record.headers, record.body) for record in records])

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        await self._ask("append", [(None, headers, record)])

    async def head(self) -> Position:
        head: Position = await self._ask("head")
        return head

    def public_seen(self) -> int:
        return 0

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        first = True
        while True:
            try:
                entries: list[BrokerRecord] = await self._ask("read", after, first)
            except GapError:
                raise
            except StoreUnavailableError:
                first = True
                await asyncio.sleep(RETRY_AFTER)
                continue
            first = False
            if entries:
                after = entries[-1].position
                deliver(entries)

    async def trim(self, control: Position, public: Position) -> None:
        await self._ask("trim", control)

    async def _ask(self, verb: str, *args: Any) -> Any:
        return await self._network.call(verb, args, {})


class ThreadOfLoop:
    """The node's thread as it sees it: what it is given runs in a thread of its own."""

    def __init__(self, loop: VirtualLoop, context: contextvars.Context) -> None:
        self._loop = loop
        self._context = context

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon_threadsafe(callback, *args, context=self._context)

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(work, context=self._context.copy())


class SimulatedLoopThread:
    """``LoopThread`` without a thread."""

    loop: ThreadOfLoop

    def __init__(self, _name: str, _error: type[Exception], **_texts: str) -> None:
        self._ended = False

    def start(self) -> None:
        loop, owner = asyncio.get_running_loop(), THREAD.get().owner
        assert isinstance(loop, VirtualLoop)
        context = owner.context("store") if isinstance(owner, Host) else context_of(loop.threads.outside)
        self.loop = ThreadOfLoop(loop, context)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.loop.create_task(work)

    async def end_after(self, last: Coroutine[Any, Any, None]) -> None:
        if self._ended:
            last.close()
            return
        self._ended = True
        await self.run(last)


class ReplicatedLogPlace(StorePlace):
    """A place where faults hit the messages between a node and the broker."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario) -> None:
        broker, waits = Broker(loop), frozenset({"read"})
        self.broker = broker
        super().__init__(network_to(broker, loop, scenario, waits=waits, part=0.5))  # a call is several of these
        self._straight = Network(
            loop, broker, seed=scenario.seed, faults=frozenset(), often=0.0, lease=scenario.lease, waits=waits
        )
        self._timeout = 2 * scenario.lease
        self._features = with_presence(FEATURES, scenario)

    def store_for(self, host: Host) -> EventStore:
        return self._store(self._network)

    def auditor(self) -> EventStore:
        return self._store(self._straight)

    def _store(self, network: Network) -> EventStore:
        with patch.object(durabus.stores.replicated_log.node, "LoopThread", SimulatedLoopThread):
            options = Options(timeout=self._timeout, snapshot_every=SNAPSHOT_EVERY)
            return ReplicatedLogStore(BrokerTransport(network), options, self._features)
