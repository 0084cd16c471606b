"""From emit to the store, and back to the handles."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from unittest.mock import create_autospec

import pytest
from msgspec.structs import replace
from tests.worker.support import WatchedStore

from durabus import Event, EventBus, EventBusShutdownError, EventStatus
from durabus.bus import ends
from durabus.bus.finder import Finder
from durabus.bus.handle import Handle
from durabus.bus.history import HistoryLimit
from durabus.bus.publisher import Publisher
from durabus.errors import StoreUnavailableError
from durabus.model.claim import ClaimRequest
from durabus.model.event import NewEvent, new_event
from durabus.model.limits import MAX_BATCH
from durabus.model.settlement import Complete
from durabus.stores.memory.core import FEATURES
from durabus.worker.children.run_now import ChildRunner
from durabus.worker.children.waiting import AwaitedChildren


class SharedStore(WatchedStore):
    """A store whose features say that other processes may end our events."""

    features = replace(FEATURES, shared_between_processes=True)


def make_publisher(store: WatchedStore, runs_here: Callable[[int], bool]) -> Publisher:
    children = AwaitedChildren(store, "default", None, lease=30.0, has_remote=lambda _type: False)
    runner = create_autospec(ChildRunner, instance=True)
    runner.is_running.side_effect = runs_here
    children.runner = runner
    return Publisher(
        store,
        "default",
        ready=nothing_first,
        children=children,
        finder=Finder(store, "default"),
        history=HistoryLimit(store, EventBus(store)._options),
    )


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


@pytest.fixture
async def publisher(store: SharedStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publisher]:
    monkeypatch.setattr(ends, "LOOK_EVERY", 0.01)
    publisher = make_publisher(store, lambda _id: False)
    yield publisher
    publisher.close(EventBusShutdownError("end of the test"))


async def nothing_first() -> None:
    pass


def send(publisher: Publisher, count: int = 1) -> list[Handle]:
    handles = [Handle(new_event("user.created", {"n": n})) for n in range(count)]
    for handle in handles:
        publisher.send(handle)
    return handles


async def end_elsewhere(store: SharedStore, *, after: int = 0) -> None:
    """Another process completes everything but the first ``after`` events."""
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="other:1", token="t", limit=10_000))
    await store.settle_events([Complete(claim.ref) for claim in claims[after:]])


async def test_what_is_sent_in_one_turn_of_the_loop_is_one_write(store: SharedStore, publisher: Publisher) -> None:
    handles = send(publisher, 100)
    events = [await handle.stored() for handle in handles]
    assert store.added == [100]
    assert [event.payload["n"] for event in events] == list(range(100))
    assert [event.id for event in events] == sorted(event.id for event in events)


async def test_what_is_sent_in_two_turns_is_two_writes(store: SharedStore, publisher: Publisher) -> None:
    for _ in range(2):
        (handle,) = send(publisher)
        await handle.stored()
    assert store.added == [1, 1]


async def test_no_write_is_larger_than_the_store_takes(store: SharedStore, publisher: Publisher) -> None:
    handles = send(publisher, MAX_BATCH + 1)
    await publisher.flush()
    assert store.added == [MAX_BATCH, 1]
    assert (await handles[-1].stored()).payload == {"n": MAX_BATCH}


async def test_each_handle_learns_that_its_write_was_refused(store: SharedStore, publisher: Publisher) -> None:
    store.failing["add"] = 1
    handles = send(publisher, 3)
    for handle in handles:
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await handle.stored()
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await handle.completed()
    assert await publisher.wait_until_empty(20)
    (next_one,) = send(publisher)
    assert (await next_one.stored()).status is EventStatus.PENDING


@pytest.mark.parametrize("count", [5, 2 * MAX_BATCH + 1])
async def test_flush_returns_when_everything_is_stored(store: SharedStore, publisher: Publisher, count: int) -> None:
    send(publisher, count)
    await publisher.flush()
    assert (await store.counts()).pending == count


async def test_an_end_in_another_process_is_noticed(store: SharedStore, publisher: Publisher) -> None:
    (handle,) = send(publisher)
    await handle.stored()
    await end_elsewhere(store)
    async with asyncio.timeout(20):
        assert (await handle).status is EventStatus.COMPLETED
    assert await publisher.wait_until_empty(20)


async def test_an_end_in_another_process_is_noticed_behind_many_that_do_not_end(
    store: SharedStore, publisher: Publisher
) -> None:
    handles = send(publisher, 300)
    await publisher.flush()
    await end_elsewhere(store, after=250)
    async with asyncio.timeout(20):
        assert (await handles[-1]).status is EventStatus.COMPLETED


async def test_an_end_in_another_process_is_noticed_behind_many_that_run_here(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "LOOK_EVERY", 0.01)
    here: set[int] = set()
    publisher = make_publisher(store, here.__contains__)
    many = send(publisher, ends.LOOK_AT_ONCE + 1)
    here.update([(await handle.stored()).id for handle in many])
    (elsewhere,) = send(publisher)
    await elsewhere.stored()
    await end_elsewhere(store, after=len(many))
    async with asyncio.timeout(20):
        assert (await elsewhere).status is EventStatus.COMPLETED
    publisher.close(EventBusShutdownError("end of the test"))


async def test_many_ends_in_other_processes_are_caught_up_with(
    store: SharedStore, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher sees all of them in one round: the second one is an hour away."""
    monkeypatch.setattr(ends, "LOOK_EVERY", 0.5)
    handles = send(publisher, 5 * ends.LOOK_AT_ONCE)
    await publisher.flush()
    await end_elsewhere(store)
    await asyncio.sleep(0)  # the first round has its time
    monkeypatch.setattr(ends, "LOOK_EVERY", 3600)
    async with asyncio.timeout(20):
        for handle in handles:
            assert (await handle).status is EventStatus.COMPLETED


async def test_an_event_that_vanished_is_not_waited_for_without_end(store: SharedStore, publisher: Publisher) -> None:
    (handle,) = send(publisher)
    event = await handle.stored()
    await store.remove_event(event.id)
    waiting = asyncio.create_task(handle.completed())
    done, _ = await asyncio.wait({waiting}, timeout=20)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert done


async def test_close_raises_in_callers_that_wait_for_an_event(store: SharedStore, publisher: Publisher) -> None:
    (handle,) = send(publisher)
    await handle.stored()
    waiting = asyncio.create_task(handle.completed())
    await asyncio.sleep(0)
    publisher.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await waiting


async def test_close_raises_in_callers_that_wait_for_all_events(store: SharedStore, publisher: Publisher) -> None:
    send(publisher)
    await publisher.flush()
    waiting = asyncio.create_task(publisher.wait_until_empty(None))
    await asyncio.sleep(0)
    publisher.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await waiting


async def test_a_close_that_cuts_nothing_off_leaves_the_publisher_idle(
    store: SharedStore, publisher: Publisher
) -> None:
    publisher.close(EventBusShutdownError("shut down"))
    assert await publisher.wait_until_empty(20)


async def test_nothing_is_taken_after_close(store: SharedStore, publisher: Publisher) -> None:
    publisher.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        send(publisher)
    assert store.added == []


async def test_what_was_on_its_way_to_the_store_at_close_does_not_open_it_again(
    store: SharedStore, publisher: Publisher
) -> None:
    await store.add_events([new_event("user.created", idempotency_key="k")])
    handle = Handle(new_event("user.created", idempotency_key="k"))
    publisher.send(handle)
    flushing = asyncio.create_task(publisher.flush())
    publisher.close(EventBusShutdownError("shut down"))
    await flushing
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await handle.completed()
    assert publisher.by_event_id == {}


async def test_a_flush_does_not_wait_for_ever_for_a_store_that_hangs() -> None:
    class HangingStore(SharedStore):
        async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
            await asyncio.Event().wait()
            raise AssertionError

    publisher = make_publisher(HangingStore(), lambda _id: False)
    (handle,) = send(publisher)
    await publisher.flush(0.01)
    ending = publisher.give_up_sending()
    publisher.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="before the store confirmed"):
        await handle.stored()
    await asyncio.wait(ending, timeout=20)
    assert [task.cancelled() for task in ending] == [True]


async def test_a_handle_may_be_awaited_by_many(store: SharedStore, publisher: Publisher) -> None:
    (handle,) = send(publisher)
    await handle.stored()
    waiting = [asyncio.create_task(handle.completed()) for _ in range(3)]
    impatient = asyncio.create_task(handle.completed())
    await asyncio.sleep(0)
    impatient.cancel()
    await end_elsewhere(store)
    async with asyncio.timeout(20):
        events = await asyncio.gather(*waiting)
    assert len({event.id for event in events}) == 1
