"""Two calls at a time: the store is never idle while there is work, and nothing is claimed beyond the slots."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.support import Calls, WatchedStore, all_completed, filled, until, working

from durabus.errors import StoreUnavailableError
from durabus.model.claim import ClaimRequest
from durabus.model.event import Event
from durabus.model.policies import RetryPolicy
from durabus.model.settlement import Settlement
from durabus.model.statuses import EventStatus
from durabus.store.claims import SettleAnswer

pytestmark = pytest.mark.timeout(60)


class SlowStore(WatchedStore):
    """Other processes share it, so the worker halves its batches. It replies to settlements when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.features = replace(self.features, shared_between_processes=True)
        self.held: list[asyncio.Event] = []
        self.slow = True
        self.unfinished = 0
        self.most_unfinished = 0

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        answer = await super().settle_events(
            settlements, then_claim=then_claim, connection=connection, with_entries=with_entries
        )
        self.unfinished += 1
        self.most_unfinished = max(self.most_unfinished, self.unfinished)
        if self.slow:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        self.unfinished -= 1
        return answer

    def answer_all(self) -> None:
        self.slow = False
        for held in self.held:
            held.set()


async def test_half_a_batch_is_settled_while_the_other_half_is_under_way() -> None:
    store, calls = SlowStore(), Calls()
    await filled(store, 40)
    async with working(store, calls, concurrency=20):
        await until(lambda: len(store.held) == 2)
        assert len(calls.numbers) == 20  # both halves ran, and both calls ask for their successors
        store.held[1].set()  # replies may come in any order
        await until(lambda: len(store.held) == 3)
        assert store.most_unfinished == 2
        store.answer_all()
        await all_completed(store, 40)
    assert sorted(calls.numbers) == list(range(40))


async def test_a_second_call_waits_until_there_is_enough_for_it() -> None:
    store, calls = SlowStore(), Calls()
    await filled(store, 15)
    async with working(store, calls, concurrency=20):
        await until(lambda: len(calls.numbers) == 15)
        await asyncio.sleep(0.05)
        assert [len(store.held), store.settled] == [1, [10]]  # the other five wait for their neighbours
        store.answer_all()
        await all_completed(store, 15)
    assert store.settled == [10, 5]


async def test_calls_under_way_never_bring_more_than_there_are_slots() -> None:
    store = SlowStore()
    store.slow = False
    running = most = 0

    async def handler(_event: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await filled(store, 500)
    async with working(store, handler, concurrency=16) as worker:
        while len(store.in_status(EventStatus.COMPLETED)) < 500:
            assert worker.in_flight <= 16 + 16  # slots, and what is on its way to the store
            await asyncio.sleep(0)
    assert most <= 16


async def test_an_event_that_comes_back_by_the_other_call_is_not_taken_for_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, numbers = SlowStore(), list[int]()

    async def handler(event: Event) -> None:
        number = event.payload["n"]
        numbers.append(number)
        if number >= 30:
            await asyncio.sleep(0.1)  # meanwhile the first ones are due again
        elif number < 3 and numbers.count(number) == 1:
            raise ValueError("once more")

    await filled(store, 40)
    soon = RetryPolicy(max_retries=1, base_delay=0.02, jitter=0.0)
    async with working(store, handler, concurrency=20, retry=soon):
        await until(lambda: len(store.held) == 2)
        store.held[1].set()  # the first call gave three events back, and has no reply yet
        await until(lambda: len(store.held) == 3)
        store.held[2].set()
        await until(lambda: numbers.count(0) == 2)
        store.answer_all()
        await all_completed(store, 40)
    assert sorted(numbers) == sorted([*range(40), *range(3)])
    assert "lost" not in caplog.text


async def test_when_one_of_two_calls_fails_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.store.outage.FIRST_PAUSE", 0.01)
    store, calls = SlowStore(), Calls()
    store.slow = False
    settle, fail_every = store.settle_events, iter(range(1000))

    async def failing(settlements: Sequence[Settlement], **options: Any) -> SettleAnswer:
        turn = next(fail_every)
        if turn % 3 == 0:
            raise StoreUnavailableError("not reached")
        answer = await settle(settlements, **options)
        if turn % 3 == 1:
            raise StoreUnavailableError("done, but the answer was lost")
        return answer

    store.settle_events = failing  # type: ignore[method-assign]
    await filled(store, 200)
    async with working(store, calls, concurrency=20):
        await all_completed(store, 200)
    assert sorted(calls.numbers) == list(range(200))
