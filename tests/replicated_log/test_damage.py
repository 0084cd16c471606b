"""A node stops when the log is not what was written, or not the one that it has read. It never guesses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import pytest
from tests.replicated_log.broker_tests import read_again, request, stop_reading
from tests.replicated_log.pictures import pictures
from tests.replicated_log.simulated_log import SimulatedLog, SimulatedTransport
from tests.replicated_log.simulated_store import FEATURES

from durabus.errors import ConfigurationError, DamagedLogError, DurabusError
from durabus.model.event import new_event
from durabus.stores.replicated_log.commands import StopBus, encode_command, encode_commands
from durabus.stores.replicated_log.options import Options, options_from_url
from durabus.stores.replicated_log.public_lane import public_record
from durabus.stores.replicated_log.records import label, seal
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.stores.replicated_log.transport import BrokerRecord, Position


class Nodes:
    """Stores on one log that are closed at the end."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.log = SimulatedLog()
        self._stack = stack

    async def open(self, transport: SimulatedTransport | None = None, **options: object) -> ReplicatedLogStore:
        store = ReplicatedLogStore(transport or SimulatedTransport(self.log), Options(**options), FEATURES)  # type: ignore[arg-type]
        self._stack.push_async_callback(store.close)
        await store.open()
        return store


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(stack)


def control() -> bytes:
    commands = encode_commands([encode_command(StopBus("b"))])
    (record,) = seal(commands, session="x", number=1, low=0, public_seen=0, largest=1000)
    return record


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def damaged_records() -> dict[str, tuple[str | None, Mapping[str, str], bytes]]:
    record, public = control(), public_record(new_event("t", {"n": 1}), session="x", number=1, place=0, count=1)
    (no_commands,) = seal(b"junk", session="x", number=1, low=0, public_seen=0, largest=1000)
    unlabelled = {name: value for name, value in public.headers.items() if name != "durabus-crc"}
    return {
        "a flipped bit": (None, label(record), flipped(record)),
        "no label any more": (None, {}, record),
        "garbage with our label": (None, {"durabus-crc": "00000000"}, b"what is this"),
        "no commands": (None, label(no_commands), no_commands),
        "a flipped bit in an event": ("t", public.headers, flipped(public.body)),
        "an event without its label": ("t", unlabelled, public.body),
    }


@pytest.mark.parametrize("kind", damaged_records())
async def test_a_damaged_record_stops_every_node_and_ends_every_wait(nodes: Nodes, kind: str) -> None:
    stores = [await nodes.open() for _ in range(2)]
    await stores[0].add_events([new_event("t", delay=60)])
    waiting = [asyncio.create_task(store.wait_for_work("default", timeout=60)) for store in stores]
    await asyncio.sleep(0)
    place = nodes.log.head[0] + 1
    nodes.log.store(*damaged_records()[kind])
    for store in stores:
        with pytest.raises(DamagedLogError, match=rf"^the simulated log at {place}: .*skip_record={place}") as told:
            await store.counts()
        assert told.value.position == str(place)
        for call in (store.stop_bus("b"), store.add_events([new_event("t")]), store.claim_next_events(request())):
            with pytest.raises(DamagedLogError):
                await call
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
    with pytest.raises(DamagedLogError):
        await nodes.open()


class SoundCopy(SimulatedTransport):
    """A copy of the broker on which one record is not damaged."""

    def __init__(self, log: SimulatedLog, sound: dict[Position, BrokerRecord]) -> None:
        super().__init__(log)
        self._sound = sound

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        def replaced(entries: Sequence[BrokerRecord]) -> None:
            deliver([self._sound.get(entry.position, entry) for entry in entries])

        await super().follow(after, replaced)


async def test_of_two_nodes_that_read_different_bytes_the_one_with_the_damage_stops(nodes: Nodes) -> None:
    sound: dict[Position, BrokerRecord] = {}
    good, bad = await nodes.open(SoundCopy(nodes.log, sound)), await nodes.open()
    record = control()
    number = nodes.log.head[0] + 1
    sound[(number,)] = BrokerRecord((number,), 1.0, None, label(record), record)
    nodes.log.store(None, label(record), flipped(record))
    with pytest.raises(DamagedLogError):
        await bad.counts()
    assert len(await good.add_events([new_event("t")])) == 1
    assert (await good.counts()).pending == 1


async def test_a_damaged_record_that_the_operator_skips_counts_on_no_node(nodes: Nodes) -> None:
    first = await nodes.open()
    await first.add_events([new_event("t")])
    nodes.log.store(*damaged_records()["a flipped bit in an event"])
    with pytest.raises(DamagedLogError) as told:
        await first.counts()
    stores = [await nodes.open(skip_record=told.value.position) for _ in range(2)]
    await stores[0].add_events([new_event("t")])
    one, two = await pictures(*stores)
    assert one == two
    assert stores[0].skipped_records == 1
    assert (await stores[1].counts()).pending == 2
    assert await stores[0].snapshot()
    later = await nodes.open()
    assert (await later.counts()).pending == 2  # a snapshot after the place makes the option needless


@pytest.mark.parametrize("place", ["x", "1-", "-1", "1-2-3", "\u0661"])
def test_an_invalid_skip_record_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"skip_record=.*like 17 or 41-12"):
        options_from_url(f"nats://h?skip_record={place}")


async def read_on(store: ReplicatedLogStore) -> None:
    """Let the node begin to read again, as after an interruption of the connection."""
    await store._node._own.run(stop_reading(store._node))
    await store._node._own.run(read_again(store._node))


async def test_after_an_interruption_the_same_log_is_read_on(nodes: Nodes) -> None:
    store = await nodes.open()
    await store.add_events([new_event("t")])
    await read_on(store)
    await store.stop_bus("b")
    await read_on(store)
    assert (await store.counts()).pending == 1


async def refused(store: ReplicatedLogStore) -> DurabusError:
    async def count_on() -> None:
        while True:  # until the node has looked
            await store.counts()

    with pytest.raises(DamagedLogError) as told:
        await asyncio.wait_for(count_on(), 5)
    return told.value


@pytest.mark.parametrize("lane", ["control", "public"])
async def test_a_suffix_that_was_rewritten_behind_our_position_stops_the_node(nodes: Nodes, lane: str) -> None:
    store, other = await nodes.open(), await nodes.open()
    await store.stop_bus("b")
    await other.add_events([new_event("t")])
    if lane == "control":
        await store.stop_bus("b")
    await store.counts()
    await store._node._own.run(stop_reading(store._node))
    lost = nodes.log.entries.pop()
    # The broker lost it, and took another one in its place.
    nodes.log.entries.append(lost._replace(at_ts=lost.at_ts + 0.001))
    await store._node._own.run(read_again(store._node))
    assert "the record at this position is not the one that this node has read" in str(await refused(store))


async def test_a_log_that_lost_its_end_stops_the_node(nodes: Nodes) -> None:
    store = await nodes.open()
    await store.add_events([new_event("t") for _ in range(5)])
    await store._node._own.run(stop_reading(store._node))
    del nodes.log.entries[-2:]
    await store._node._own.run(read_again(store._node))
    assert "ends at" in str(await refused(store))


async def test_a_log_that_was_made_anew_beside_an_old_snapshot_is_not_taken_for_the_old_one(nodes: Nodes) -> None:
    store = await nodes.open()
    await store.add_events([new_event("t")])
    assert await store.snapshot()
    await store.close()
    kept = nodes.log.snapshot
    nodes.log = SimulatedLog()
    another = await nodes.open()
    for n in range(20):
        await another.stop_bus(f"b{n}")
    nodes.log.snapshot = kept
    with pytest.raises(DamagedLogError, match="the record at this position is not the one"):
        await nodes.open()


async def test_a_stopped_node_reports_the_first_reason(nodes: Nodes) -> None:
    store = await nodes.open(snapshot_every=1)
    nodes.log.store(*damaged_records()["a flipped bit"])
    first = await refused(store)
    await asyncio.sleep(0)
    store._node._tasks.spawn(fail())
    assert await refused(store) is first


async def fail() -> None:
    raise ZeroDivisionError
