"""Bugs that the simulation found, each as the smallest test that shows it."""

import asyncio
import gc
import logging
from collections.abc import Sequence

import pytest

from durabus import Context, Event, EventBus, EventStatus
from durabus.errors import LeaseLost, StoreUnavailableError
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, LockClaim
from durabus.model.event import NewEvent
from durabus.model.query import EventQuery
from durabus.model.settlement import Keep
from durabus.queue.locks import LockManager
from durabus.stores.memory.store import MemoryStore
from durabus.worker.heartbeat import in_time
from durabus.worker.poller import Poller

LEASE = 1.0
POLL = 0.1


class ChildRefusedOnce(MemoryStore):
    """The store cannot be reached when the first child is stored."""

    refused = 0

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        if any(one.parent_id for one in new) and not self.refused:
            self.refused += 1
            raise StoreUnavailableError("no connection")
        return await super().add_events(new, connection=connection)


async def test_a_child_that_was_not_stored_is_emitted_again_also_by_a_handler_that_returned_a_value() -> None:
    store = ChildRefusedOnce()
    async with EventBus(store) as bus:

        @bus.on("parent")
        async def handle(event: Event, ctx: Context) -> str:
            await ctx.emit("child", {})
            return "a value, which is kept as the handler's result"

        @bus.on("child")
        async def child(event: Event) -> None:
            pass

        parent = await store.get_event(await bus.publish("parent", {}))
        assert parent is not None
        assert (parent.status, parent.attempts) == (EventStatus.COMPLETED, 2)
        children = (await store.find(EventQuery(parent_ids=(parent.event_id,)))).events
        assert [one.status for one in children] == [EventStatus.COMPLETED]


async def test_a_child_that_was_not_stored_gives_its_parent_no_attempt_beyond_the_last() -> None:
    store = ChildRefusedOnce()
    async with EventBus(store, retry={"max_retries": 0}) as bus:

        @bus.on("parent")
        async def handle(event: Event, ctx: Context) -> None:
            await ctx.emit("child", {})

        parent = await store.get_event(await bus.publish("parent", {}))
        assert parent is not None
        assert (parent.status, parent.attempts) == (EventStatus.FAILED, 1)


class AnswersLate(MemoryStore):
    """Grants the first claim at once, and replies when its lease is nearly over."""

    late = True

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        claims = await super().claim_next_events(request)
        if claims and self.late:
            self.late = False
            await asyncio.sleep(request.lease * 0.95)
        return claims


async def test_a_claim_that_arrives_after_its_deadline_goes_back_unworked() -> None:
    store = AnswersLate()
    fences: list[int] = []
    async with EventBus(store, lease=LEASE) as bus:

        @bus.on("late")
        async def handle(event: Event) -> None:
            fences.append(event.fence)

        event = await store.get_event(await bus.publish("late", {}))
        assert event is not None
        assert (event.status, fences) == (EventStatus.COMPLETED, [2])


class HoldsOnToCancelledRenewals(MemoryStore):
    """Never replies to renewals, and a cancelled one takes long to end. A claimed event is not granted again."""

    claimed = False

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        claims = [] if self.claimed else await super().claim_next_events(request)
        self.claimed = self.claimed or bool(claims)
        return claims

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(asyncio.sleep(10 * lease))
        raise AssertionError


async def test_a_handler_is_stopped_at_its_deadline_whatever_the_store_does_with_a_cancelled_renewal() -> None:
    store = HoldsOnToCancelledRenewals()
    stopped = asyncio.Event()
    bus = await EventBus(store, lease=LEASE).start()
    begun = asyncio.get_running_loop().time()

    @bus.on("long")
    async def handle(event: Event) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            stopped.set()

    bus.emit("long", {})
    await stopped.wait()
    assert asyncio.get_running_loop().time() - begun < 9 * LEASE  # a cancelled renewal takes ten to end
    await bus.shutdown(0.0)


class LocksLate(MemoryStore):
    """Grants the first lock at once, and replies when its lease is nearly over."""

    late = True

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        lock = await super().claim_lock(key, worker_id=worker_id, token=token, lease=lease)
        if lock is not None and self.late:
            self.late = False
            await asyncio.sleep(lease * 0.95)
        return lock


async def test_a_lock_that_arrives_after_its_deadline_is_not_used() -> None:
    async with LockManager(LocksLate(), lease=LEASE).hold("ledger") as lock:
        assert lock.fence == 2


class LooksInVain(MemoryStore):
    """Gives a hint of work at once, and does not reply to calls with a short timeout."""

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        await asyncio.sleep(0.001)
        return timeout >= POLL


async def test_a_worker_polls_in_time_although_no_hint_leads_to_an_event() -> None:
    asks = asyncio.Event()
    poller = Poller(LooksInVain(), "b", poll_interval=POLL, wake=asks.set, nodes=lambda: 1000)
    poller.on_claimed(0, 1)
    listening = asyncio.create_task(poller.listen())
    async with asyncio.timeout(30):
        await asks.wait()
    listening.cancel()


async def test_a_call_that_fails_as_its_caller_is_cancelled_is_not_reported_as_forgotten() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    answered = asyncio.Event()

    async def call() -> None:
        await answered.wait()
        raise StoreUnavailableError("no connection")

    waiting = asyncio.create_task(in_time(call(), 60.0))
    await asyncio.sleep(0.01)
    answered.set()
    await asyncio.sleep(0)  # the call has failed, and its caller does not know yet
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    del waiting
    await asyncio.sleep(0)
    gc.collect()
    assert reported == []


class KeepsNothing(MemoryStore):
    """Another worker has the event whenever a result shall be kept."""

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        return [LeaseLost(keep.ref.id, "taken over") for keep in kept]


async def test_handlers_that_lose_their_claim_together_are_not_reported_as_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "durabus")  # the record of an error keeps all that it refers to
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    stopped = asyncio.Event()
    async with EventBus(KeepsNothing(), results="strict", handler_mode="parallel") as bus:

        @bus.on("order.placed", id="a")
        @bus.on("order.placed", id="b")
        async def quick(event: Event) -> None:
            pass

        @bus.on("order.placed", id="c")
        async def long(event: Event) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                stopped.set()

        bus.emit("order.placed")
        await stopped.wait()
    gc.collect()
    assert reported == []
