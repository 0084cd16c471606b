"""A child that a settlement stored becomes public, also if its node is killed before it writes the public record."""

import asyncio

import pytest
from tests.replicated_log.simulated_log import SimulatedLog
from tests.replicated_log.simulated_store import simulated_store

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import NewEvent, new_event
from durabus.model.settlement import Complete
from durabus.stores.replicated_log import missing_records
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.public_lane import APART_FROM
from durabus.stores.replicated_log.store import ReplicatedLogStore


class KilledError(Exception):
    """The process is gone: nothing of the rest of the call happens."""


@pytest.fixture
def log() -> SimulatedLog:
    return SimulatedLog()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_records, "LOOK_EVERY", 0.05)


async def claim_and_settle(store: ReplicatedLogStore, *children: NewEvent) -> None:
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token()))
    await store.settle_events([Complete(claim.ref, children=children)])


async def killed_after_settling(log: SimulatedLog, *children: NewEvent) -> None:
    """A node settles a parent of these children, and dies before it writes their public records."""
    store = simulated_store(log)
    await store.open()
    for one in store._node._own_work:
        store._node._own.loop.call_soon_threadsafe(one.cancel)

    async def dies(*_args: object) -> None:
        raise KilledError

    setattr(store, "_publish_children", dies)  # noqa: B010  (mypy would refuse the assignment)
    await store.add_events([new_event("parent")])
    with pytest.raises(KilledError):
        await claim_and_settle(store, *children)
    await store.close()


async def public(log: SimulatedLog, count: int) -> list[str]:
    async with asyncio.timeout(20):
        while len([entry for entry in log.entries if entry.type == "child"]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return sorted(entry.headers["event_id"] for entry in log.entries if entry.type == "child")


async def test_another_node_writes_the_record(log: SimulatedLog) -> None:
    children = [new_event("child", n, metadata={"long": "x" * (APART_FROM + n)}) for n in range(3)]
    others = [simulated_store(log) for _ in range(3)]
    for other in others:
        await other.open()
    await killed_after_settling(log, *children)
    ids = sorted(child.event_id for child in children)
    assert await public(log, 3) == ids
    await asyncio.sleep(0.3)  # some looks of each node
    assert await public(log, 3) == ids, "one node writes each of them, once"
    for other in others:
        assert not other._core.unpublished
        assert (await other.counts()).pending == 3
        assert await other.list_locks() == []
        await other.close()


async def test_a_node_that_starts_from_a_snapshot_writes_the_record(
    log: SimulatedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = new_event("child", metadata={"source": "web"}, tags=["a"], delay=60)
    await killed_after_settling(log, child)
    monkeypatch.setattr(missing_records, "LOOK_EVERY", 3600)
    first = simulated_store(log, options=Options(public_kept=0))
    await first.open()
    assert await first._node.snapshot()
    assert await first._node.snapshot()
    await first.close()
    monkeypatch.setattr(missing_records, "LOOK_EVERY", 0.05)
    later = simulated_store(log)
    await later.open()
    assert later._core.unpublished == {child.event_id: child}
    assert await public(log, 1) == [child.event_id]
    await later.close()


async def test_the_record_of_a_child_that_has_ended_and_was_deleted_stores_it_no_second_time(
    log: SimulatedLog,
) -> None:
    child = new_event("child")
    await killed_after_settling(log, child)
    store = simulated_store(log)
    await store.open()
    await claim_and_settle(store)
    assert await store.cleanup_excess_events("default", keep=0) == 2
    assert await public(log, 1) == [child.event_id]
    await asyncio.sleep(0.2)
    counts = await store.counts()
    assert (counts.pending, counts.completed) == (0, 0)
    assert await public(log, 1) == [child.event_id]
    await store.close()
