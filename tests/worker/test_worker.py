"""The worker: claims what it has room for, runs it, settles in batches."""

import asyncio
from typing import Any

import pytest
from tests.worker.support import Calls, WatchedStore, all_completed, filled, until, working

from durabus import Action, Event
from durabus.clock import monotonic
from durabus.errors import ConfigurationError
from durabus.model.claim import OfferedHandler, OfferRequest
from durabus.store import outage
from durabus.worker import offers
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.worker import Worker, WorkerOptions


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.01)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


async def trail(store: WatchedStore, event: Event) -> list[Action]:
    return [entry.action for entry in await store.read_event_log(event.id)]


async def test_what_is_done_together_is_settled_together(store: WatchedStore) -> None:
    calls = Calls()
    await filled(store, 100)
    async with working(store, calls, concurrency=100):
        await all_completed(store, 100)
    assert sum(store.settled) == 100
    assert len(store.settled) <= 10


async def test_a_settlement_brings_the_next_claims(store: WatchedStore) -> None:
    calls = Calls()
    await filled(store, 100)
    async with working(store, calls, concurrency=20, poll_interval=10):
        await all_completed(store, 100)
    assert store.calls["claim"] <= 12


async def test_a_worker_never_claims_more_than_it_has_room_for(store: WatchedStore) -> None:
    release, most = asyncio.Event(), 0

    async def wait(event: Event) -> None:
        await release.wait()

    await filled(store, 30)
    async with working(store, wait, concurrency=7) as worker:
        await until(lambda: worker.in_flight == 7)
        for _ in range(20):
            worker.nudge()
            await asyncio.sleep(0)
            most = max(most, (await store.counts()).processing)
        assert most == 7
        release.set()
        await all_completed(store, 30)
    assert max(store.asked) <= 7


async def test_one_slot_runs_one_event_after_another(store: WatchedStore) -> None:
    calls = Calls()
    await filled(store, 20)
    async with working(store, calls, concurrency=1):
        await all_completed(store, 20)
    assert calls.numbers == list(range(20))


async def test_a_long_handler_does_not_hold_up_the_others(store: WatchedStore) -> None:
    release, calls = asyncio.Event(), Calls()

    async def handler(event: Event) -> None:
        if event.payload["n"] == 0:
            await release.wait()
        await calls(event)

    await filled(store, 10)
    async with working(store, handler, concurrency=2):
        await calls.reach(9)
        release.set()
        await all_completed(store, 10)
    assert calls.numbers[-1] == 0


async def test_an_idle_worker_asks_the_store_no_oftener_than_its_poll_interval(store: WatchedStore) -> None:
    async with working(store, Calls(), poll_interval=0.05):
        await asyncio.sleep(0.3)
    assert store.calls["claim"] <= 8
    assert store.calls["settle"] == 0


async def test_a_full_worker_does_not_spin_when_something_becomes_due(store: WatchedStore) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def wait(event: Event) -> None:
        entered.set()
        await release.wait()

    await filled(store)
    async with working(store, wait, concurrency=1, poll_interval=0.05):
        await entered.wait()
        await filled(store, delay=0.05)
        await asyncio.sleep(0.4)
        release.set()
        waits = store.calls["wait"]
    assert waits < 30


async def test_a_hint_from_the_store_wakes_the_worker(store: WatchedStore) -> None:
    calls = Calls()
    async with working(store, calls, poll_interval=60):
        await asyncio.sleep(0)
        await filled(store)
        await calls.reach(1)


async def test_stop_may_come_before_start_and_twice(store: WatchedStore) -> None:
    worker = Worker(store, "default", Dispatcher())
    await worker.stop(1.0)
    async with working(store, Calls()) as started:
        await started.stop(1.0)
        await started.stop(1.0)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"concurrency": 10_001}, {"lease": 0}, {"lease": -1}], ids=str)
async def test_options_that_cannot_work_are_refused(store: WatchedStore, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Worker(store, "default", Dispatcher(), WorkerOptions(**options))


async def test_a_hint_for_offers_that_comes_soon_after_a_look_is_followed_later(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a handler offered by a node that this one does not know yet would wait until it hears of that node."""
    looks = list[OfferRequest]()

    async def look(request: OfferRequest) -> list[OfferedHandler]:
        looks.append(request)
        return []

    monkeypatch.setattr(store, "claim_offered_handlers", look)
    async with working(store, Calls()) as worker:
        worker._sharing._offers._looked_at = monotonic()
        worker._sharing.claimed(in_vain=True)
        await until(lambda: len(looks) == 1, offers.CURIOUS + 2.0)
    assert looks[0].handler_ids == ("h0",)
