"""The worker survives its store, its handlers and the loss of its claims."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.support import ONCE, STEADY, Calls, WatchedStore, all_completed, filled, make_handler, until, working

from durabus import Action, Event, EventStatus
from durabus.errors import StoreClosedError, StoreUnavailableError
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.settlement import Settled, Settlement
from durabus.store import outage
from durabus.store.claims import SettleAnswer
from durabus.worker import claim_table
from durabus.worker import worker as worker_module
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.heartbeat import SAFETY
from durabus.worker.worker import Worker, WorkerOptions


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.01)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


async def trail(store: WatchedStore, event: Event) -> list[Action]:
    return [entry.action for entry in await store.read_event_log(event.id)]


@pytest.mark.parametrize("call", ["claim", "settle", "wait"])
async def test_a_store_that_fails_for_a_while_loses_nothing(store: WatchedStore, call: str) -> None:
    calls = Calls()
    store.failing[call] = 5
    await filled(store, 20)
    async with working(store, calls, concurrency=4):
        await all_completed(store, 20)
        await until(lambda: not store.failing[call])
    assert sorted(calls.numbers) == list(range(20))


@pytest.mark.parametrize("call", ["claim", "settle"])
async def test_a_lost_reply_does_not_strand_events_or_run_them_twice(store: WatchedStore, call: str) -> None:
    calls = Calls()
    store.losing[call] = 3
    events = await filled(store, 20)
    async with working(store, calls, concurrency=4):
        await all_completed(store, 20)
    assert sorted(calls.numbers) == list(range(20))
    for event in events:
        assert await trail(store, event) == [Action.PUBLISHED, Action.PICKED, Action.COMPLETED]


async def test_an_event_claimed_while_the_last_handler_was_removed_goes_back(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, claim = Calls(), store.claim_next_events

    async def claim_then_unsubscribe(request: ClaimRequest) -> list[Claim]:
        claims = await claim(request)
        if claims:
            dispatcher.remove("h")
        return claims

    monkeypatch.setattr(store, "claim_next_events", claim_then_unsubscribe)
    (event,) = await filled(store)
    dispatcher = Dispatcher()
    dispatcher.add(make_handler(calls))
    worker = Worker(store, "default", dispatcher, WorkerOptions(poll_interval=0.02))
    worker.start()
    await until(lambda: store.calls["settle"] > 0)
    await worker.stop(1.0)
    dispatcher.close()
    assert await trail(store, event) == [Action.PUBLISHED, Action.PICKED, Action.RELEASED]
    assert calls.numbers == []


async def test_a_failure_of_the_store_is_logged(store: WatchedStore, caplog: pytest.LogCaptureFixture) -> None:
    store.failing["claim"] = 1
    async with working(store, Calls()):
        await filled(store)
        await all_completed(store, 1)
    assert "disk full" in caplog.text


async def test_a_dispatch_that_breaks_fails_the_attempt_and_the_worker_lives(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dispatch, broken = Dispatcher.dispatch, [True]

    async def break_once(self: Dispatcher, *arguments: Any) -> Settlement:
        if broken:
            broken.pop()
            raise RuntimeError("a bug of ours")
        return await dispatch(self, *arguments)

    monkeypatch.setattr(Dispatcher, "dispatch", break_once)
    calls = Calls()
    (event,) = await filled(store)
    async with working(store, calls):
        await all_completed(store, 1)
    assert await trail(store, event) == [
        Action.PUBLISHED, Action.PICKED, Action.FAILED, Action.PICKED, Action.COMPLETED,
    ]  # fmt: skip
    assert "a bug of ours" in caplog.text


@pytest.mark.parametrize("first", ["at once", "later"])
async def test_a_handler_that_raises_a_cancellation_of_its_own_is_tried_again(store: WatchedStore, first: str) -> None:
    calls = Calls()

    async def handler(event: Event) -> None:
        if event.attempts == 1:
            if first == "later":
                await asyncio.sleep(0)
            raise asyncio.CancelledError
        await calls(event)

    await filled(store)
    async with working(store, handler, retry=STEADY.merged({"base_delay": 0})):
        await all_completed(store, 1)


async def test_an_error_that_cannot_be_shown_uses_up_the_attempts_like_any_other(store: WatchedStore) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot be shown")

    async def handler(event: Event) -> None:
        raise Broken

    (event,) = await filled(store)
    async with working(store, handler, retry=ONCE):
        await until(lambda: len(store.in_status(EventStatus.FAILED)) == 1, 3)
    assert await trail(store, event) == [Action.PUBLISHED, Action.PICKED, Action.FAILED]


async def test_a_handler_that_swallows_the_cancellation_of_a_shutdown_has_not_done_its_work(
    store: WatchedStore,
) -> None:
    entered = asyncio.Event()

    async def stubborn(event: Event) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    (event,) = await filled(store)
    async with working(store, stubborn) as worker:
        await entered.wait()
        await worker.stop(0.01)
    found = await store.get_event(event.id)
    assert found is not None
    assert (found.status, found.attempts) == (EventStatus.PENDING, 0)


async def test_events_that_were_claimed_but_not_begun_go_back_at_a_shutdown(store: WatchedStore) -> None:
    entered = asyncio.Event()

    async def wait(event: Event) -> None:
        entered.set()
        await asyncio.Event().wait()

    await filled(store, 10)
    async with working(store, wait, concurrency=10) as worker:
        await entered.wait()
        await worker.stop(0.01)
    counts = await store.counts()
    assert (counts.pending, counts.processing) == (10, 0)


async def test_a_claim_that_is_taken_away_is_cancelled_even_if_this_worker_gets_it_again(store: WatchedStore) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(event: Event) -> None:
        if event.fence == 1:
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

    (event,) = await filled(store)
    async with working(store, handler, lease=1.0) as worker:
        await entered.wait()
        await store.reset_event(event.id, reason="taken away")
        async with asyncio.timeout(20):
            await cancelled.wait()
        await all_completed(store, 1)
        assert worker.metrics.snapshot().lease_lost == {"user.created": 1}


async def test_a_slot_that_lost_its_event_takes_the_next_one(store: WatchedStore) -> None:
    entered, calls = asyncio.Event(), Calls()

    async def handler(event: Event) -> None:
        if event.type == "endless":
            entered.set()
            await asyncio.Event().wait()
        await calls(event)

    (endless,) = await filled(store, kind="endless")
    async with working(store, handler, lease=1.0, concurrency=2):
        await entered.wait()
        await store.remove_event(endless.id)
        await filled(store, 5)
        await calls.reach(5)
        await all_completed(store, 5)


async def test_a_store_that_is_closed_stops_its_worker_with_a_log_line(
    store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = Dispatcher()
    dispatcher.add(make_handler(Calls()))
    worker = Worker(store, "default", dispatcher, WorkerOptions(poll_interval=0.01))
    worker.start()
    await asyncio.sleep(0)
    await store.close()
    await until(lambda: "closed under" in caplog.text)
    try:
        await worker.stop(1.0)
    except StoreClosedError:
        logging.getLogger(__name__).info("stop may say so, too")


async def test_an_event_is_not_held_for_ever_if_its_handler_cancels_its_own_task(store: WatchedStore) -> None:
    calls = Calls()

    async def handler(event: Event) -> None:
        if event.attempts == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        await calls(event)

    await filled(store, 3)
    async with working(store, handler, lease=1.0, concurrency=2, retry=STEADY.merged({"base_delay": 0})):
        await all_completed(store, 3)
    assert sorted(calls.numbers) == [0, 1, 2]


async def test_a_settlement_callback_that_fails_does_not_stop_the_others(
    store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    calls, told = Calls(), []

    def on_settled(claim: Claim, _settlement: Settlement, _settled: Settled) -> None:
        told.append(claim.event.payload["n"])
        if claim.event.payload["n"] == 1:
            raise RuntimeError("a bug of who listens")

    await filled(store, 8)
    async with working(store, calls, concurrency=4, on_settled=on_settled):
        await all_completed(store, 8)
        await until(lambda: len(told) == 8)
    assert sorted(calls.numbers) == sorted(told) == list(range(8))
    assert "a bug of who listens" in caplog.text


class PausedStore(WatchedStore):
    """Holds back the reply to a claim that got events, until the test lets it go or loses it."""

    def __init__(self) -> None:
        super().__init__()
        self.granted = asyncio.Event()
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        claims = await super().claim_next_events(request)
        if claims and not self.answer.done():
            self.granted.set()
            await self.answer
        return claims


@pytest.fixture
async def paused() -> PausedStore:
    return PausedStore()


def lose(answer: asyncio.Future[None]) -> None:
    answer.set_exception(StoreUnavailableError("connection lost after it was done"))


async def test_a_claim_without_a_reply_is_given_back_at_a_shutdown(paused: PausedStore) -> None:
    calls = Calls()
    (event,) = await filled(paused)
    async with working(paused, calls) as worker:
        await paused.granted.wait()
        stopping = asyncio.create_task(worker.stop(5.0))
        await asyncio.sleep(0)
        lose(paused.answer)
        await stopping
    assert calls.numbers == []
    assert await trail(paused, event) == [Action.PUBLISHED, Action.PICKED, Action.RELEASED]
    assert [event.attempts for event in paused.in_status(EventStatus.PENDING)] == [0]


async def test_a_claim_that_is_granted_during_a_shutdown_is_given_back(paused: PausedStore) -> None:
    calls = Calls()
    (event,) = await filled(paused)
    async with working(paused, calls) as worker:
        await paused.granted.wait()
        stopping = asyncio.create_task(worker.stop(5.0))
        await asyncio.sleep(0)
        paused.answer.set_result(None)
        await stopping
    assert calls.numbers == []
    assert await trail(paused, event) == [Action.PUBLISHED, Action.PICKED, Action.RELEASED]


async def test_a_claim_without_a_reply_is_repeated_even_if_there_is_no_other_reason(
    paused: PausedStore,
) -> None:
    """A new request would leave the events of the first one claimed until their leases end."""
    calls = Calls()
    dispatcher = Dispatcher()
    dispatcher.add(make_handler(calls))
    worker = Worker(paused, "default", dispatcher, WorkerOptions(poll_interval=60))
    (event,) = await filled(paused)
    worker.start()
    await paused.granted.wait()
    dispatcher.remove("h")  # now it would not claim by itself
    lose(paused.answer)
    await until(lambda: len(paused.in_status(EventStatus.PENDING)) == 1)
    await worker.stop(1.0)
    assert await trail(paused, event) == [Action.PUBLISHED, Action.PICKED, Action.RELEASED]


async def test_the_lease_of_a_claim_that_was_asked_for_again_counts_from_the_first_time(
    paused: PausedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, entered, release = [1000.0], asyncio.Event(), asyncio.Event()
    for module in (worker_module, claim_table):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])

    async def wait(event: Event) -> None:
        entered.set()
        await release.wait()

    await filled(paused)
    async with working(paused, wait, lease=30.0) as worker:
        await paused.granted.wait()
        now[0] += 20
        lose(paused.answer)
        await entered.wait()
        (claimed,) = worker._claims.by_id.values()
        assert claimed.deadline == 1000 + 30 * SAFETY
        release.set()


async def test_a_settlement_that_the_store_cannot_take_does_not_keep_the_others_from_their_end() -> None:
    class PickyStore(WatchedStore):
        async def settle_events(
            self,
            settlements: Sequence[Settlement],
            *,
            then_claim: ClaimRequest | None = None,
            connection: object | None = None,
            with_entries: bool = False,
        ) -> SettleAnswer:
            if any(settlement.ref.id == poison.id for settlement in settlements):
                raise ValueError("a value that the driver cannot take")
            return await super().settle_events(
                settlements, then_claim=then_claim, connection=connection, with_entries=with_entries
            )

    store, calls = PickyStore(), Calls()
    events = await filled(store, 40)
    poison = events[3]
    async with working(store, calls, concurrency=10):
        await all_completed(store, 39)
        assert [event.id for event in store.in_status(EventStatus.PROCESSING)] == [poison.id]
        await filled(store, 10)
        await all_completed(store, 49)
        poison = replace(poison, id=-1)
        await all_completed(store, 50)
    assert sorted(calls.numbers) == sorted([*range(40), *range(10)])
    assert max(store.settled) > 1


async def test_what_is_done_is_settled_although_its_deadline_passed_meanwhile(store: WatchedStore) -> None:
    """No other worker has claimed the event, so the store takes the result."""
    told: list[EventStatus] = []

    async def handler(event: Event) -> None:
        (claimed,) = worker._claims.by_id.values()
        asyncio.get_running_loop().call_soon(worker._claims.lose_expired, claimed, "could not be renewed in time")

    def on_settled(_claim: Claim, _settlement: Settlement, settled: Settled) -> None:
        told.append(settled.status)

    await filled(store)
    async with working(store, handler, on_settled=on_settled) as worker:
        await all_completed(store, 1)
    assert told == [EventStatus.COMPLETED]
    assert worker.metrics.snapshot().lease_lost == {}
