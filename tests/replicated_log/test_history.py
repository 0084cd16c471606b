"""What is remembered of COMPLETED events, and what a reader of the log may rely on."""

from collections.abc import Iterator

from tests.replicated_log.pictures import pictures
from tests.replicated_log.simulated_log import SimulatedLog
from tests.replicated_log.simulated_store import simulated_store

from durabus import Action, new_event
from durabus.lifecycle.state import EventState
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.query import EventQuery
from durabus.model.settlement import Complete
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.store import ReplicatedLogStore

KEPT = 10


async def opened(log: SimulatedLog) -> ReplicatedLogStore:
    store = simulated_store(log, options=Options(max_history=KEPT))
    await store.open()
    return store


async def complete(store: ReplicatedLogStore, count: int) -> None:
    for _ in range(count):
        await store.add_events([new_event("t")])
        request = ClaimRequest(bus="default", worker_id="w", token=new_token())
        (claim,) = await store.claim_next_events(request)
        await store.settle_events([Complete(claim.ref)])


async def completed_in_log(store: ReplicatedLogStore) -> list[int]:
    return [entry.id for entry in (await store.read_log()).entries if entry.action is Action.COMPLETED]


async def test_without_a_reader_old_events_leave_the_log_by_themselves() -> None:
    store = await opened(SimulatedLog())
    await complete(store, 30)
    assert KEPT <= len(await completed_in_log(store)) <= KEPT + KEPT // 5
    await store.close()


async def test_what_a_reader_has_not_read_stays_and_goes_when_it_has() -> None:
    log = SimulatedLog()
    store = await opened(log)
    lock = await store.claim_lock("pipeline", worker_id="w", token=new_token(), lease=60.0)
    assert lock is not None
    await complete(store, 5)
    await store.save_position("pipeline", await store.log_head(), lock=lock)
    await complete(store, 60)
    assert await completed_in_log(store) == list(range(6, 66))
    assert await store.snapshot()
    late = await opened(log)
    await store.save_position("pipeline", await store.log_head(), lock=lock)
    await complete(store, 3)
    assert len(await completed_in_log(store)) <= KEPT + 3
    first, second = await pictures(store, late)
    assert first == second
    await late.close()
    await store.close()


async def test_what_is_asked_for_is_forgotten_all_the_same() -> None:
    store = await opened(SimulatedLog())
    lock = await store.claim_lock("pipeline", worker_id="w", token=new_token(), lease=60.0)
    assert lock is not None
    await store.save_position("pipeline", "", lock=lock)
    await complete(store, 20)
    assert len(await completed_in_log(store)) == 20
    assert await store.cleanup_excess_events("default", keep=4) == 16
    assert len(await completed_in_log(store)) == 4
    await store.close()


class Backwards(dict[int, EventState]):
    """A mapping that can be read from its end only."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the whole history was gone through")


async def test_the_newest_events_are_found_without_going_through_the_history() -> None:
    store = await opened(SimulatedLog())
    await complete(store, KEPT)
    core = store._node.replica.core
    core._states = Backwards(core._states)
    page = await store.find(EventQuery(limit=2))
    assert [event.id for event in page.events] == [KEPT, KEPT - 1]
    await store.close()
