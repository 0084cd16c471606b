"""A queue that is polled by hand does not keep events that no caller got."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.worker.support import WatchedStore, until

from durabus import Action, Event, EventManager, EventQueue, EventStatus, ManualClock, RetryPolicy, open_store
from durabus.errors import ConfigurationError, StoreUnavailableError
from durabus.model.claim import Claim, ClaimRequest


class SlowStore(WatchedStore):
    """Replies to a claim when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.granted = asyncio.Event()
        self.answer = asyncio.Event()

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        claims = await super().claim_next_events(request)
        self.granted.set()
        await self.answer.wait()
        self._after("late")
        return claims


async def trail(store: WatchedStore, event: Event) -> list[Action]:
    return [entry.action for entry in await store.read_event_log(event.id)]


async def cancelled_poll(queue: EventQueue, store: SlowStore) -> None:
    polling = asyncio.create_task(queue.poll())
    await store.granted.wait()
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling


async def test_what_a_cancelled_poll_was_given_goes_back_with_its_attempt() -> None:
    store = SlowStore()
    queue = EventQueue(store)
    event = await queue.publish("foo")
    await cancelled_poll(queue, store)
    assert len(store.in_status(EventStatus.PROCESSING)) == 1
    store.answer.set()
    await until(lambda: len(store.in_status(EventStatus.PENDING)) == 1)
    assert await trail(store, event) == [Action.PUBLISHED, Action.PICKED, Action.RELEASED]
    again = await queue.poll()
    assert again is not None
    assert (again.id, again.attempts) == (event.id, 1)
    await queue.finalize(again.id)


async def test_the_next_poll_asks_for_what_a_cancelled_poll_may_have_claimed() -> None:
    store = SlowStore()
    queue = EventQueue(store)
    event = await queue.publish("foo")
    store.losing["late"] = 1
    await cancelled_poll(queue, store)
    store.answer.set()
    await until(lambda: not store.losing["late"])
    polled = await queue.poll()
    assert polled is not None
    assert (polled.id, polled.attempts) == (event.id, 1)


async def test_the_next_poll_repeats_a_poll_without_a_reply() -> None:
    store = WatchedStore()
    queue = EventQueue(store)
    event = await queue.publish("foo")
    store.losing["claim"] = 2
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await queue.poll()
    polled = await queue.poll()
    assert polled is not None
    assert (polled.id, polled.attempts) == (event.id, 1)
    await queue.finalize(polled.id)
    assert await queue.poll() is None


async def test_polls_side_by_side_do_not_share_an_event() -> None:
    store = WatchedStore()
    queue = EventQueue(store)
    for _ in range(3):
        await queue.publish("foo")
    store.losing["claim"] = 1
    answers = await asyncio.gather(*(queue.poll() for _ in range(3)), return_exceptions=True)
    events = [answer for answer in answers if isinstance(answer, Event)]
    events += [event for event in [await queue.poll(), await queue.poll()] if event is not None]
    assert sorted(event.payload is None and event.id for event in events) == sorted({event.id for event in events})
    assert len(events) == 3


async def test_a_step_of_a_manager_that_is_cancelled_puts_its_event_back() -> None:
    store, entered = WatchedStore(), asyncio.Event()
    manager = EventManager(EventQueue(store))

    async def endless(event: Event) -> None:
        entered.set()
        await asyncio.Event().wait()

    manager.register("foo", "handler1", endless)
    event = await manager.queue.publish("foo")
    step = asyncio.create_task(manager.process_next())
    await entered.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await until(lambda: len(store.in_status(EventStatus.PENDING)) == 1)
    assert await trail(store, event) == [Action.PUBLISHED, Action.PICKED, Action.RELEASED]
    assert manager.queue.claim_on(event.id) is None


async def test_claims_finalized_in_callers_transactions_are_forgotten(tmp_path: Path) -> None:
    """The queue does not learn that a transaction was committed."""
    store = await open_store(f"sqlite:///{tmp_path}/bus.db")
    queue = EventQueue(store, abandoned_after=0.01)
    await queue.publish("order.placed")
    event = await queue.poll()
    assert event is not None
    connection = sqlite3.connect(tmp_path / "bus.db")
    await queue.finalize(event.id, connection=connection)
    assert queue.claim_on(event.id) is not None
    connection.commit()
    connection.close()
    await asyncio.sleep(0.02)
    assert await queue.poll() is None
    assert queue.claim_on(event.id) is None
    await store.close()


async def test_an_event_that_kills_its_workers_is_a_dead_letter_when_the_manager_has_a_limit() -> None:
    clock = ManualClock(1_700_000_000.0)
    store = await open_store("memory://", clock=clock)
    manager = EventManager(EventQueue(store), retry=RetryPolicy(max_retries=1))
    manager.register("poison", "kills", lambda event: pytest.fail("the event has used its attempts up"))
    event = await EventQueue(store).publish("poison")
    for _ in range(2):
        assert await EventQueue(store).poll() is not None  # and the process dies here
        clock.advance(61.0)
    await manager.process_next()
    ended = await store.get_event(event.id)
    assert ended is not None
    assert (ended.status, len(ended.errors)) == (EventStatus.FAILED, 2)
    await store.close()


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
async def test_a_limit_that_is_no_number_of_attempts_is_refused(limit: Any) -> None:
    store = await open_store("memory://")
    with pytest.raises(ConfigurationError, match="max_attempts="):
        await EventQueue(store).poll(max_attempts=limit)
    await store.close()
