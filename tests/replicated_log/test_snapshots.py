"""A node starts from a snapshot, the log is trimmed behind it, and a node that falls behind begins anew."""

import asyncio

import pytest
from tests.replicated_log.pictures import pictures
from tests.replicated_log.simulated_log import SimulatedLog, SimulatedSnapshots, SimulatedTransport
from tests.replicated_log.simulated_store import FEATURES, simulated_store

from durabus.clock import ManualClock
from durabus.errors import DamagedLogError, LeaseLost, SchemaError, StoreUnavailableError
from durabus.model.claim import ClaimRequest, LockClaim, new_incarnation, new_token
from durabus.model.event import new_event
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete, Fail
from durabus.stores.replicated_log import node
from durabus.stores.replicated_log.commands import ClaimLock, ReleaseLock, Written
from durabus.stores.replicated_log.log_clock import LogClock
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.replica import Replica
from durabus.stores.replicated_log.snapshot import SnapshotLoader, Snapshotter
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.stores.replicated_log.transport import Manifest, Position, SnapshotPart


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> SimulatedLog:
    return SimulatedLog(clock)


async def a_life(store: ReplicatedLogStore, clock: ManualClock) -> None:
    """Write something to every table."""
    await store.register_handlers("default", "n1", [HandlerInfo(handler_id="a", pattern="*")], kept_for=60)
    await store.stop_bus("default")
    await store.add_events([new_event("t", {"n": n}, idempotency_key=f"k{n}", delay=n * 10.0) for n in range(6)])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2, lease=5.0)
    (claim,) = await store.claim_next_events(request)
    await store.settle_events([Fail(claim.ref, "no", None)])
    clock.advance(30)
    one, two = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2))
    await store.settle_events([Complete(one.ref, (), (), 1.5, handler_id="a")])
    assert two.event.id == 3
    await store.cancel_event(6, reason="never claimed")
    await store.claim_lock("key", worker_id="w", token="t", lease=100)
    await store.show_presence(new_incarnation())


async def test_a_node_starts_from_the_snapshot_and_the_rest_of_the_log(log: SimulatedLog, clock: ManualClock) -> None:
    store = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await store.open()
    await a_life(store, clock)
    assert await store._node.snapshot()
    assert await store._node.snapshot()
    assert log.first > 5
    await store.add_events([new_event("t")])
    late = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await late.open()
    first, second = await pictures(store, late)
    assert first == second
    assert await late.get_event(1) == await store.get_event(1)
    await late.close()
    await store.close()


async def test_a_snapshot_is_made_by_itself_when_the_log_is_long(log: SimulatedLog) -> None:
    store = simulated_store(log, options=Options(snapshot_every=50, public_kept=0))
    await store.open()
    for n in range(80):
        await store.stop_bus(f"b{n}")
    async with asyncio.timeout(30):
        while log.first == 1:
            await store.stop_bus("more")
    assert not store._node._snapshotter.is_due()
    await store.close()


async def test_claims_and_fences_outlive_the_log_that_granted_them(log: SimulatedLog, clock: ManualClock) -> None:
    store = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await store.open()
    await store.add_events([new_event("t"), new_event("t")])
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token="mine", limit=2, lease=5.0))
    lock = await store.claim_lock("key", worker_id="w", token="t", lease=1.0)
    assert await store._node.snapshot()
    await store.close()
    late = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await late.open()
    again = await late.claim_next_events(ClaimRequest(bus="default", worker_id="w", token="mine", limit=2, lease=5.0))
    assert again == claims
    clock.advance(6.0)
    (taken,) = await late.claim_next_events(ClaimRequest(bus="default", worker_id="v", token="other", limit=1))
    assert (taken.event.id, taken.event.fence) == (1, 2)
    (outcome,) = (await late.settle_events([Complete(claims[0].ref)])).outcomes
    assert isinstance(outcome, LeaseLost)
    newer = await late.claim_lock("key", worker_id="v", token="u", lease=1.0)
    assert lock is not None
    assert newer is not None
    assert newer.fence > lock.fence
    await late.close()


async def test_a_cancelled_event_stays_cancelled_after_a_snapshot(log: SimulatedLog, clock: ManualClock) -> None:
    store = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await store.open()
    waiting, held, left = await store.add_events([new_event("t"), new_event("t", priority=9), new_event("t")])
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token="mine"))
    assert claim.event.id == held.id
    for event in (waiting, held):
        await store.cancel_event(event.id, reason="not wanted")
    entries, counts = (await store.read_log()).entries, await store.counts()
    cancelled = await store.get_events([waiting.id, held.id, left.id])
    assert await store._node.snapshot()
    await store.close()
    late = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await late.open()
    assert await late.get_events([waiting.id, held.id, left.id]) == cancelled
    assert ((await late.read_log()).entries, await late.counts()) == (entries, counts)
    assert await late.cleanup_excess_events("default", keep=0) == 2
    await late.close()


class Unreachable(SimulatedSnapshots):
    """Snapshots of a broker that does not reply to the first requests."""

    failures = 0

    async def newest(self) -> Manifest | None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no broker")
        return await super().newest()


class Sleeper(SimulatedTransport):
    """A node that reads nothing while it sleeps."""

    def __init__(self, log: SimulatedLog) -> None:
        super().__init__(log)
        self.snapshots: Unreachable = Unreachable(log)
        self.awake = True

    async def follow(self, after, deliver) -> None:  # type: ignore[no-untyped-def]
        while True:
            if self.awake:
                new = self.log.after(after)
                if new:
                    after = new[-1].position
                    deliver(new)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_node_far_behind_begins_anew(
    log: SimulatedLog, clock: ManualClock, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "RESTORE_PAUSE", 0.01)
    transport = Sleeper(log)
    sleeper = ReplicatedLogStore(transport, Options(public_kept=0), FEATURES, clock)
    await sleeper.open()
    store = simulated_store(log, clock=clock, options=Options(public_kept=0))
    await store.open()
    transport.awake = False
    await a_life(store, clock)
    assert await store._node.snapshot()
    assert await store._node.snapshot()
    waiting = asyncio.create_task(sleeper.wait_for_work("default", timeout=30))
    await asyncio.sleep(0.05)
    transport.snapshots.failures = failures  # the broker may be away just then
    transport.awake = True
    await waiting
    first, second = await pictures(store, sleeper)
    assert transport.snapshots.failures == 0
    assert first == second
    assert len(await sleeper.add_events([new_event("t")])) == 1
    await sleeper.close()
    await store.close()


async def test_a_hole_that_no_snapshot_covers_is_damage(log: SimulatedLog) -> None:
    store = simulated_store(log)
    await store.open()
    for n in range(5):
        await store.stop_bus(f"b{n}")
    log.entries, log.first = log.entries[3:], 4
    late = simulated_store(log, options=Options(timeout=1.0))
    with pytest.raises(DamagedLogError, match="no snapshot covers them"):
        await late.open()
    await store.close()


async def test_only_one_node_makes_a_snapshot_at_a_time(log: SimulatedLog) -> None:
    stores = [simulated_store(log) for _ in range(3)]
    for store in stores:
        await store.open()
        await store.stop_bus("b")
    made = await asyncio.gather(*(store._node.snapshot() for store in stores))
    assert sum(made) >= 1
    assert log.snapshot is not None
    for store in stores:
        await store.close()


async def test_a_zombie_snapshotter_is_refused(log: SimulatedLog) -> None:
    store = simulated_store(log)
    await store.open()
    await store.stop_bus("b")
    assert await store._node._own.run(store._node._snapshotter._write(7))
    await store.stop_bus("c")
    assert not await store._node._own.run(store._node._snapshotter._write(6))
    await store.close()


async def test_each_lane_is_trimmed_up_to_an_earlier_snapshot(log: SimulatedLog, clock: ManualClock) -> None:
    store = simulated_store(log, clock=clock, options=Options(public_kept=100))
    await store.open()
    made: list[Position] = []
    for _ in range(4):
        await store.add_events([new_event("t")])
        assert await store._node.snapshot()
        assert log.snapshot is not None
        made.append(log.snapshot[0].position)
        clock.advance(60)
    assert log.trimmed == [(made[0], ()), (made[1], made[0]), (made[2], made[1])]
    await store.close()


@pytest.mark.parametrize("damage", ["unknown table", "not compressed", "no rows"])
def test_a_damaged_snapshot_is_reported(damage: str) -> None:
    part = {
        "unknown table": SnapshotPart("colours", "0", b""),
        "not compressed": SnapshotPart("events", "0", b"abc"),
        "no rows": SnapshotPart("locks", "0", __import__("zlib").compress(b"\x01")),
    }[damage]
    with pytest.raises(SchemaError, match="cannot be read"):
        SnapshotLoader().add(part)


class Asked:
    """A node whose commands return when the test says so."""

    session = "s"

    def __init__(self, log: SimulatedLog) -> None:
        self.replica = Replica(self.session, LogClock(log.clock))
        self.commands: list[Written] = []
        self.answering = asyncio.Event()

    async def own_command(self, command: Written) -> object:
        self.commands.append(command)
        await self.answering.wait()
        return LockClaim(key="k", worker_id="w", token="t", fence=1, expires_ts=1.0)


async def test_a_lock_that_comes_when_the_node_closes_already_is_released(log: SimulatedLog) -> None:
    asked = Asked(log)
    snapshotter = Snapshotter(asked, SimulatedTransport(log), every=1, public_kept=0)
    making = asyncio.create_task(snapshotter.snapshot())
    while not asked.commands:  # noqa: ASYNC110  (it begins in a task of its own)
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.sleep(0)
    asked.answering.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert [type(command) for command in asked.commands] == [ClaimLock, ReleaseLock]


class SlowSnapshots(SimulatedSnapshots):
    """A place for snapshots that takes for ever."""

    begun = False

    async def write(self, manifest, parts, *, fence) -> bool:  # type: ignore[no-untyped-def]
        self.begun = True
        await asyncio.sleep(60)
        return False


async def test_closing_in_the_middle_of_a_snapshot_leaves_it_to_others(log: SimulatedLog, clock: ManualClock) -> None:
    transport = SimulatedTransport(log)
    snapshots = transport.snapshots = SlowSnapshots(log)
    store = ReplicatedLogStore(transport, Options(snapshot_every=1), FEATURES, clock)
    await store.open()
    async with asyncio.timeout(30):
        while not snapshots.begun:  # noqa: ASYNC110  (in the store's own thread)
            await asyncio.sleep(0.01)
    await store.close()
    other = simulated_store(log, clock=clock)
    await other.open()
    assert await other.list_locks() == []
    assert await other._node.snapshot()
    await other.close()
