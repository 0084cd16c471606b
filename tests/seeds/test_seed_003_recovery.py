"""Seed 003: events that a crash left behind run again, and no other worker gets an event with a valid claim."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.seeds.support import QUICK, Gate, Recorder, status_of, stored, until, until_status

from durabus import Action, Event, EventBus, EventQueue, EventStatus, EventStore, ManualClock, RetryPolicy, open_store
from durabus.model.claim import ClaimRequest, new_token

SHORT_LEASE = 1.5
"""Seconds: a busy machine may stand still for most of one."""


async def left_behind(store: EventStore, count: int = 1, *, lease: float = 30.0) -> list[Event]:
    """Store events that a worker claimed before it died."""
    queue = EventQueue(store)
    for n in range(count):
        await queue.publish("user.created", {"n": n})
    request = ClaimRequest(bus=queue.bus, worker_id="dead:1", token=new_token(), limit=count, lease=lease)
    return [claim.event for claim in await store.claim_next_events(request)]


async def test_start_dispatches_events_again_that_a_dead_worker_left_processing(
    timed_store: EventStore, clock: ManualClock
) -> None:
    (event,) = await left_behind(timed_store)
    clock.advance(30.1)
    handler = Recorder()
    bus = EventBus(timed_store)
    bus.subscribe("user.*", handler)
    await bus.start()
    await until_status(timed_store, event.id, EventStatus.COMPLETED)
    await bus.shutdown()
    assert [seen.id for seen in handler.events] == [event.id]


async def test_a_crash_counts_as_a_failed_attempt(timed_store: EventStore, clock: ManualClock) -> None:
    (event,) = await left_behind(timed_store)
    clock.advance(30.1)
    handler = Recorder()
    async with EventBus(timed_store) as bus:
        bus.subscribe("user.*", handler)
        await handler.called()
    (again,) = handler.events
    assert (again.attempts, again.retry_count, again.errors) == (2, 1, ("lease expired (worker dead:1)",))
    trail = [entry.action for entry in await timed_store.read_event_log(event.id)]
    assert trail[:4] == [Action.PUBLISHED, Action.PICKED, Action.ABANDONED, Action.PICKED]


async def test_one_hundred_stuck_events_are_recovered_at_start(timed_store: EventStore, clock: ManualClock) -> None:
    await left_behind(timed_store, 100)
    clock.advance(30.1)
    handler = Recorder()
    async with EventBus(timed_store) as bus:
        bus.subscribe("user.*", handler)
        await handler.called(100)
    assert {event.payload["n"] for event in handler.events} == set(range(100))


async def test_events_that_were_pending_before_start_are_dispatched(store: EventStore) -> None:
    queue, handler = EventQueue(store), Recorder()
    for n in range(3):
        await queue.publish("user.created", {"n": n})
    async with EventBus(store) as bus:
        bus.subscribe("user.*", handler)
        await handler.called(3)
    assert [event.payload["n"] for event in handler.events] == [0, 1, 2]


async def test_a_claim_whose_lease_is_not_over_is_not_stolen(timed_store: EventStore, clock: ManualClock) -> None:
    (event,) = await left_behind(timed_store)
    clock.advance(29.9)
    handler = Recorder()
    async with EventBus(timed_store, poll_interval=0.01) as bus:
        bus.subscribe("user.*", handler)
        await bus.publish("user.updated")
        assert handler.types == ["user.updated"]
        clock.advance(0.2)
        await handler.called(2)
    assert handler.events[1].id == event.id


async def test_an_event_that_kills_every_worker_ends_in_the_dead_letters(
    timed_store: EventStore, clock: ManualClock
) -> None:
    (event,) = await left_behind(timed_store)
    clock.advance(30.1)
    handler = Recorder()
    async with EventBus(timed_store, retry=RetryPolicy(max_retries=0)) as bus:
        bus.subscribe("user.*", handler)
        ended = await until_status(timed_store, event.id, EventStatus.FAILED)
    assert handler.calls == 0
    assert ended.errors == ("lease expired (worker dead:1)",)


async def test_events_and_their_errors_survive_the_bus(durable_url: str) -> None:
    bus, handler = EventBus(durable_url, retry=RetryPolicy(max_retries=9, base_delay=3600, max_delay=3600)), Recorder()
    bus.subscribe("user.*", Recorder(failures=99))
    await bus.start()
    event = await bus.emit("user.created", {"id": 1}).stored()

    async def failed_once() -> bool:
        return (await stored(bus.store, event.id)).retry_count == 1

    await until(failed_once)
    await bus.shutdown()
    later = ManualClock(time.time() + 7200)
    store = await open_store(durable_url, clock=later)
    async with EventBus(store) as successor:
        successor.subscribe("user.*", handler)
        await handler.called()
    assert handler.events[0].errors == ("ValueError: not today",)
    assert handler.events[0].payload == {"id": 1}
    await store.close()


@asynccontextmanager
async def rival(store: EventStore, url: str, begin: threading.Event) -> AsyncIterator[list[Event]]:
    """A thread with its own loop in place of another process: from ``begin`` on it claims all it can."""
    stolen: list[Event] = []
    stop = threading.Event()

    async def steal() -> None:
        begin.wait(10)
        mine = await open_store(url) if store.features.shared_between_processes else store
        queue = EventQueue(mine, worker_id="rival:1")
        while not stop.wait(0.01):
            event = await queue.poll()
            if event is not None:
                stolen.append(event)
        if mine is not store:
            await mine.close()

    thread = threading.Thread(target=asyncio.run, args=(steal(),))
    thread.start()
    try:
        yield stolen
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)


async def test_the_heartbeat_keeps_the_claim_of_a_long_handler(store: EventStore, store_url: str) -> None:
    entered = threading.Event()

    async def long(event: Event) -> None:
        entered.set()
        await asyncio.sleep(1.4 * SHORT_LEASE)

    async with EventBus(store, lease=SHORT_LEASE) as bus:
        bus.subscribe("user.*", long)
        handle = bus.emit("user.created")
        async with rival(store, store_url, entered) as stolen:
            event = await handle
    assert (event.status, event.attempts, stolen) == (EventStatus.COMPLETED, 1, [])


async def test_the_heartbeat_is_not_starved_by_a_handler_that_blocks_the_loop(
    store: EventStore, store_url: str
) -> None:
    entered = threading.Event()

    async def busy(event: Event) -> None:
        entered.set()
        time.sleep(1.4 * SHORT_LEASE)  # noqa: ASYNC251  (this is the misdeed)

    async with EventBus(store, lease=SHORT_LEASE) as bus:
        bus.subscribe("user.*", busy)
        handle = bus.emit("user.created")
        async with rival(store, store_url, entered) as stolen:
            event = await handle
    assert (event.status, event.attempts, stolen) == (EventStatus.COMPLETED, 1, [])


async def test_a_lost_lease_cancels_the_handler_and_its_result_is_not_written(store: EventStore) -> None:
    gate = Gate()
    async with EventBus(store, lease=SHORT_LEASE) as bus:
        subscription = bus.subscribe("user.*", gate)
        bus.subscribe("other", Recorder())
        event = await bus.emit("user.created").stored()
        await gate.entered.wait()
        bus.unsubscribe(subscription)
        bus.subscribe("user.*", Recorder())
        await store.reset_event(event.id, reason="taken away")
        async with asyncio.timeout(20):
            await gate.cancelled.wait()
        ended = await until_status(store, event.id, EventStatus.COMPLETED)
        assert bus.metrics.snapshot().lease_lost == {"user.created": 1}
    trail = [(entry.action, entry.fence) for entry in await store.read_event_log(event.id)]
    assert trail == [
        (Action.PUBLISHED, 0),
        (Action.PICKED, 1),
        (Action.RESET, 1),
        (Action.PICKED, 2),
        (Action.COMPLETED, 2),
    ]
    assert (ended.attempts, ended.errors) == (1, ())


async def test_the_result_of_a_plain_function_that_lost_its_lease_is_not_written(store: EventStore) -> None:
    entered, release = threading.Event(), threading.Event()
    calls: list[int] = []

    def blocking(event: Event) -> None:
        calls.append(event.fence)
        entered.set()
        if event.fence == 1:
            release.wait(10)
            raise ValueError("of the loser")

    async with EventBus(store, lease=SHORT_LEASE, retry=QUICK) as bus:
        bus.subscribe("user.*", blocking)
        event = await bus.emit("user.created").stored()
        await asyncio.to_thread(entered.wait, 10)
        await store.reset_event(event.id, reason="taken away")
        release.set()
        ended = await until_status(store, event.id, EventStatus.COMPLETED)
    assert calls == [1, 2]
    assert ended.errors == ()


@pytest.mark.parametrize("lease", [SHORT_LEASE, 30.0])
async def test_a_handler_that_ends_after_its_event_was_removed_harms_nothing(store: EventStore, lease: float) -> None:
    gate, handler = Gate(), Recorder()
    async with EventBus(store, lease=lease) as bus:
        bus.subscribe("slow", gate)
        bus.subscribe("quick", handler)
        event = await bus.emit("slow").stored()
        await gate.entered.wait()
        await store.remove_event(event.id)
        gate.opened.set()
        await bus.publish("quick")
        assert await status_of(store, handler.events[0].id) is EventStatus.COMPLETED
    assert not await store.has_event(event.id)
