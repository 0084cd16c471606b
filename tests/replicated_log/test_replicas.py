"""Every replica decides alike, whatever happens to the records on their way."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from tests.replicated_log.pictures import picture, pictures
from tests.replicated_log.simulated_log import SimulatedLog, Trouble
from tests.replicated_log.simulated_store import simulated_store

from durabus.clock import ManualClock
from durabus.errors import DurabusError
from durabus.model.claim import ClaimRequest, new_incarnation, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Settled
from durabus.store.connect import open_store
from durabus.store.processes import PRESENT_FOR, EndedProcesses
from durabus.stores.memory.log import MemoryLog
from durabus.stores.replicated_log.log_clock import LogClock
from durabus.stores.replicated_log.replica import Replica
from durabus.stores.replicated_log.snapshot import FORMAT, SnapshotLoader, dump
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.stores.replicated_log.transport import Manifest
from durabus.testing.conformance.commands import VERBS
from durabus.testing.conformance.differential import compare, random_steps
from durabus.testing.conformance.sides import Side

TROUBLE = {"lost": 4, "repeated": 20, "reply_lost": 4, "delayed": 20}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def opened(stack: AsyncExitStack, store: ReplicatedLogStore) -> ReplicatedLogStore:
    await store.open()
    stack.push_async_callback(store.close)
    return store


async def random_commands(store: ReplicatedLogStore, clock: ManualClock, seed: int, length: int) -> None:
    """Whatever a worker may do, right or wrong."""
    side, chance = Side(store, keys=True, names=True, children=True, waits=True), random.Random(seed)
    for step in random_steps(seed, length):
        if step.verb == "advance":
            clock.advance(chance.choice([0.5, 3.0, 11.0]))
        try:
            await VERBS[step.verb][0](side, step)
        except DurabusError:
            continue


@pytest.mark.parametrize("seed", range(20))
async def test_the_replicated_log_replies_to_random_commands_as_memory_does(seed: int, stack: AsyncExitStack) -> None:
    clocks = [ManualClock(), ManualClock()]
    memory = await open_store("memory://", clock=clocks[0])
    log = SimulatedLog(clocks[1])
    replicated = await opened(stack, simulated_store(log, clock=clocks[1], trouble=Trouble(seed, **TROUBLE)))
    await compare(memory, replicated, clocks, random_steps(seed, 40))


@pytest.mark.parametrize("seed", range(10))
async def test_replicas_are_equal_to_the_last_row(seed: int, stack: AsyncExitStack) -> None:
    clock = ManualClock()
    log = SimulatedLog(clock)
    nodes = [
        await opened(stack, simulated_store(log, clock=clock, trouble=Trouble(10 * seed + number, **TROUBLE)))
        for number in range(3)
    ]
    await asyncio.gather(*(random_commands(node, clock, 100 * seed + n, 60) for n, node in enumerate(nodes)))
    first, *others = await pictures(*nodes)
    assert all(other == first for other in others)


@pytest.mark.parametrize("seed", range(10))
async def test_a_replica_from_a_snapshot_is_the_one_that_replayed_everything(seed: int, stack: AsyncExitStack) -> None:
    clock = ManualClock()
    log = SimulatedLog(clock)
    node = await opened(stack, simulated_store(log, clock=clock, trouble=Trouble(seed, repeated=30)))
    await random_commands(node, clock, seed, 150)
    entries = list(log.entries)
    cut = random.Random(seed).randrange(1, len(entries))
    whole = Replica("observer", LogClock(clock))
    whole.apply(entries[:cut])
    loader = SnapshotLoader()
    parts = [part async for part in dump(whole)]
    for part in random.Random(seed).sample(parts, len(parts)):
        loader.add(part)
    manifest = Manifest(format=FORMAT, position=whole.position, at_ts=whole.clock.log_ts)
    restored = loader.replica("observer", LogClock(clock), manifest)
    assert await picture(restored) == await picture(whole)
    for replica in (whole, restored):
        for entry in entries[cut:]:
            replica.apply([entry])
    assert await picture(restored) == await picture(whole)


async def test_the_size_of_the_batches_in_which_records_come_does_not_matter(stack: AsyncExitStack) -> None:
    clock = ManualClock()
    log = SimulatedLog(clock)
    node = await opened(stack, simulated_store(log, clock=clock))
    await random_commands(node, clock, 7, 200)
    one, all_ = Replica("a", LogClock(clock)), Replica("b", LogClock(clock))
    for entry in log.entries:
        one.apply([entry])
    all_.apply(log.entries)
    assert await picture(one) == await picture(all_)


async def test_reading_and_waiting_on_one_node_change_nothing_that_others_decide_by(stack: AsyncExitStack) -> None:
    clock = ManualClock()
    log = SimulatedLog(clock)
    asker, quiet = [await opened(stack, simulated_store(log, clock=clock)) for _ in range(2)]
    for bus in ("z", "a"):
        await asker.wait_for_work(bus, timeout=0)
    for bus in ("a", "z"):
        await asker.add_events([new_event("t", bus=bus) for _ in range(2)])
        await asker.claim_next_events(ClaimRequest(bus=bus, worker_id="w", token=new_token(), limit=2, lease=1.0))
    clock.advance(2.0)
    assert await asker.expire_events(limit=3) == 3
    first, second = await pictures(asker, quiet)
    assert first == second


async def test_only_the_node_of_the_caller_builds_the_log_entry_of_a_settlement(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, built = SimulatedLog(), list[MemoryLog]()
    nodes = [await opened(stack, simulated_store(log)) for _ in range(3)]
    await nodes[0].add_events([new_event("t"), new_event("t")])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2)
    one, two = await nodes[0].claim_next_events(request)

    last_given: Callable[[MemoryLog], str] = MemoryLog.last_given.fget  # type: ignore[attr-defined]

    def noted(self: MemoryLog) -> str:
        built.append(self)
        return last_given(self)

    monkeypatch.setattr(MemoryLog, "last_given", property(noted))
    await nodes[1].settle_events([Complete(one.ref)])
    (settled,) = (await nodes[1].settle_events([Complete(two.ref)], with_entries=True)).outcomes
    assert isinstance(settled, Settled)
    assert settled.entry == (await nodes[2].read_event_log(two.event.id))[-1]
    first, *others = await pictures(*nodes)
    assert all(other == first for other in others)
    assert len(built) == 1


async def test_two_nodes_never_hold_the_same_event(stack: AsyncExitStack) -> None:
    log = SimulatedLog()
    nodes = [
        await opened(stack, simulated_store(log, trouble=Trouble(seed, lost=1, repeated=5, delayed=1)))
        for seed in range(3)
    ]
    await nodes[0].add_events([new_event("t", {"n": n}) for n in range(300)])
    done: list[int] = []

    async def work(node: ReplicatedLogStore) -> None:
        while True:
            claims = await node.claim_next_events(
                ClaimRequest(bus="default", worker_id=node._node.session, token=new_token(), limit=7)
            )
            if not claims:
                return
            answer = await node.settle_events([Complete(claim.ref) for claim in claims])
            done.extend(outcome.id for outcome in answer.outcomes if isinstance(outcome, Settled))

    await asyncio.gather(*(work(node) for node in nodes))
    assert sorted(done) == list(range(1, 301))
    first, *others = await pictures(*nodes)
    assert all(other == first for other in others)


async def test_a_node_that_is_behind_reads_on_before_it_calls_a_process_ended(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    log = SimulatedLog(clock)
    here, behind = [await opened(stack, simulated_store(log)) for _ in range(2)]
    gone = new_incarnation()
    await here.show_presence(gone)
    await here.add_events([new_event("t")])
    assert await here.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(gone)))
    await here.withdraw_presence(gone)
    clock.advance(PRESENT_FOR)
    looks = [EndedProcesses([gone], PRESENT_FOR)]  # what its replica knew before the process left
    look = behind._core.ended_processes

    async def ended_processes() -> EndedProcesses:
        return looks.pop() if looks else await look()

    monkeypatch.setattr(behind._core, "ended_processes", ended_processes)
    assert (await behind.ended_processes()).incarnations == []
