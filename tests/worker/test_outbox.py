"""From emit to the store, and back to the handles."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from msgspec.structs import replace
from tests.worker.support import WatchedStore

from durabus import Event, EventBusShutdownError, EventStatus
from durabus.bus import publisher as outbox_module
from durabus.bus.awaited_children import AwaitedChildren
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


class SharedStore(WatchedStore):
    """Says that other processes may end our events."""

    features = replace(FEATURES, shared_between_processes=True)


def make_outbox(store: WatchedStore, runs_here: Callable[[int], bool]) -> Publisher:
    return Publisher(
        store,
        "default",
        ready=nothing_first,
        runs_here=runs_here,
        children=AwaitedChildren(store, "default", None, lease=30.0, has_remote=lambda _type: False),
        finder=Finder(store, "default"),
        history=HistoryLimit(store, "default", size=None, drop=True),
    )


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


@pytest.fixture
async def outbox(store: SharedStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publisher]:
    monkeypatch.setattr(outbox_module, "LOOK_EVERY", 0.01)
    outbox = make_outbox(store, lambda _id: False)
    yield outbox
    outbox.close(EventBusShutdownError("end of the test"))


async def nothing_first() -> None:
    pass


def send(outbox: Publisher, count: int = 1) -> list[Handle]:
    handles = [Handle(new_event("user.created", {"n": n})) for n in range(count)]
    for handle in handles:
        outbox.send(handle)
    return handles


async def end_elsewhere(store: SharedStore, *, after: int = 0) -> None:
    """Another process completes everything but the first ``after`` events."""
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="other:1", token="t", limit=10_000))
    await store.settle_events([Complete(claim.ref) for claim in claims[after:]])


async def test_what_is_sent_in_one_turn_of_the_loop_is_one_write(store: SharedStore, outbox: Publisher) -> None:
    handles = send(outbox, 100)
    events = [await handle.stored() for handle in handles]
    assert store.added == [100]
    assert [event.payload["n"] for event in events] == list(range(100))
    assert [event.id for event in events] == sorted(event.id for event in events)


async def test_what_is_sent_in_two_turns_is_two_writes(store: SharedStore, outbox: Publisher) -> None:
    for _ in range(2):
        (handle,) = send(outbox)
        await handle.stored()
    assert store.added == [1, 1]


async def test_no_write_is_larger_than_the_store_takes(store: SharedStore, outbox: Publisher) -> None:
    handles = send(outbox, MAX_BATCH + 1)
    await outbox.flush()
    assert store.added == [MAX_BATCH, 1]
    assert (await handles[-1].stored()).payload == {"n": MAX_BATCH}


async def test_a_write_that_was_refused_is_told_to_each_of_its_handles(store: SharedStore, outbox: Publisher) -> None:
    store.failing["add"] = 1
    handles = send(outbox, 3)
    for handle in handles:
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await handle.stored()
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await handle.completed()
    assert await outbox.wait_until_empty(20)
    (next_one,) = send(outbox)
    assert (await next_one.stored()).status is EventStatus.PENDING


async def test_flush_returns_when_everything_is_stored(store: SharedStore, outbox: Publisher) -> None:
    send(outbox, 5)
    await outbox.flush()
    assert (await store.counts()).pending == 5


async def test_an_end_in_another_process_is_noticed(store: SharedStore, outbox: Publisher) -> None:
    (handle,) = send(outbox)
    await handle.stored()
    await end_elsewhere(store)
    async with asyncio.timeout(20):
        assert (await handle).status is EventStatus.COMPLETED
    assert await outbox.wait_until_empty(20)


async def test_an_end_in_another_process_is_noticed_behind_many_that_do_not_end(
    store: SharedStore, outbox: Publisher
) -> None:
    handles = send(outbox, 300)
    await outbox.flush()
    await end_elsewhere(store, after=250)
    async with asyncio.timeout(20):
        assert (await handles[-1]).status is EventStatus.COMPLETED


async def test_an_end_in_another_process_is_noticed_behind_many_that_run_here(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "LOOK_EVERY", 0.01)
    here: set[int] = set()
    outbox = make_outbox(store, here.__contains__)
    many = send(outbox, outbox_module.LOOK_AT_ONCE + 1)
    here.update([(await handle.stored()).id for handle in many])
    (elsewhere,) = send(outbox)
    await elsewhere.stored()
    await end_elsewhere(store, after=len(many))
    async with asyncio.timeout(20):
        assert (await elsewhere).status is EventStatus.COMPLETED
    outbox.close(EventBusShutdownError("end of the test"))


async def test_many_ends_in_other_processes_are_caught_up_with(
    store: SharedStore, outbox: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one round: the second one is an hour away."""
    monkeypatch.setattr(outbox_module, "LOOK_EVERY", 0.5)
    handles = send(outbox, 5 * outbox_module.LOOK_AT_ONCE)
    await outbox.flush()
    await end_elsewhere(store)
    await asyncio.sleep(0)  # the first round has its time
    monkeypatch.setattr(outbox_module, "LOOK_EVERY", 3600)
    async with asyncio.timeout(20):
        for handle in handles:
            assert (await handle).status is EventStatus.COMPLETED


async def test_an_event_that_vanished_is_not_waited_for_without_end(store: SharedStore, outbox: Publisher) -> None:
    (handle,) = send(outbox)
    event = await handle.stored()
    await store.remove_event(event.id)
    waiting = asyncio.create_task(handle.completed())
    done, _ = await asyncio.wait({waiting}, timeout=20)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert done


async def test_close_tells_those_who_still_wait(store: SharedStore, outbox: Publisher) -> None:
    (handle,) = send(outbox)
    await handle.stored()
    waiting = asyncio.create_task(handle.completed())
    await asyncio.sleep(0)
    outbox.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await waiting


async def test_close_tells_those_who_wait_for_the_end_of_everything(store: SharedStore, outbox: Publisher) -> None:
    send(outbox)
    await outbox.flush()
    waiting = asyncio.create_task(outbox.wait_until_empty(None))
    await asyncio.sleep(0)
    outbox.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await waiting


async def test_a_close_that_cuts_nothing_off_leaves_it_idle(store: SharedStore, outbox: Publisher) -> None:
    outbox.close(EventBusShutdownError("shut down"))
    assert await outbox.wait_until_empty(20)


async def test_nothing_is_taken_after_close(store: SharedStore, outbox: Publisher) -> None:
    outbox.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        send(outbox)
    assert store.added == []


async def test_what_was_on_its_way_to_the_store_at_close_does_not_open_it_again(
    store: SharedStore, outbox: Publisher
) -> None:
    await store.add_events([new_event("user.created", idempotency_key="k")])
    handle = Handle(new_event("user.created", idempotency_key="k"))
    outbox.send(handle)
    flushing = asyncio.create_task(outbox.flush())
    outbox.close(EventBusShutdownError("shut down"))
    await flushing
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await handle.completed()
    assert outbox._open == {}


async def test_a_flush_does_not_wait_for_ever_for_a_store_that_hangs() -> None:
    class HangingStore(SharedStore):
        async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
            await asyncio.Event().wait()
            raise AssertionError

    outbox = make_outbox(HangingStore(), lambda _id: False)
    (handle,) = send(outbox)
    await outbox.flush(0.01)
    outbox.close(EventBusShutdownError("shut down"))
    with pytest.raises(EventBusShutdownError, match="shut down"):
        await handle.stored()


async def test_a_handle_may_be_awaited_by_many(store: SharedStore, outbox: Publisher) -> None:
    (handle,) = send(outbox)
    await handle.stored()
    waiting = [asyncio.create_task(handle.completed()) for _ in range(3)]
    impatient = asyncio.create_task(handle.completed())
    await asyncio.sleep(0)
    impatient.cancel()
    await end_elsewhere(store)
    async with asyncio.timeout(20):
        events = await asyncio.gather(*waiting)
    assert len({event.id for event in events}) == 1
