"""A plain function cannot be stopped: its event is kept until it has ended, and is never called beside itself."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.places import EVERYWHERE, fresh_url, short_lease
from tests.seeds.support import until_status
from tests.worker.support import WatchedStore, filled, make_event, make_handler, until, working

from durabus import Event, EventBus, EventManager, EventQueue, EventStatus, EventStore, SyncEventBus, open_store
from durabus.model.policies import RetryPolicy
from durabus.worker.handler import Context
from durabus.worker.threads import HandlerThreads, call_with_event, is_in_thread

QUICK = RetryPolicy(max_retries=1, base_delay=0.001, max_delay=0.001)


class Slow:
    """Holds its first call until ``release``, and notes whether a call began while another one ran."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.overlapped = False
        self.begun, self.release = threading.Event(), threading.Event()
        self._inside = 0

    def __call__(self, event: Event) -> None:
        self._inside += 1
        self.overlapped = self.overlapped or self._inside > 1
        self.calls.append(event.attempts)
        self.begun.set()
        if len(self.calls) == 1:
            self.release.wait(30)
        self._inside -= 1


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    slow = Slow()
    yield slow
    slow.release.set()


@pytest.fixture(params=EVERYWHERE)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    store = await open_store(fresh_url(request.param, request, tmp_path))
    yield store
    await store.close()


@pytest.mark.parametrize("mode", ["parallel", "bus-serial"])
async def test_a_retry_begins_after_the_function_that_overstayed_has_ended(
    store: EventStore, slow: Slow, mode: str
) -> None:
    async with EventBus(store, retry=QUICK, lease=short_lease(store), mode=mode) as bus:
        bus.subscribe("job", slow, id="slow", timeout=0.02)
        handle = bus.emit("job")
        await asyncio.to_thread(slow.begun.wait, 10)
        await asyncio.sleep(1.5 * short_lease(store))  # its timeout and its lease are long over
        event = await store.get_event(handle.event_id)
        assert event is not None
        assert (event.status, event.attempts, slow.calls) == (EventStatus.PROCESSING, 1, [1])
        slow.release.set()
        ended = await handle
    assert (ended.status, ended.errors) == (
        EventStatus.COMPLETED,
        ("TimeoutError: handler slow took longer than 0.02 s",),
    )
    assert (slow.calls, slow.overlapped) == ([1, 2], False)


async def test_an_event_timeout_waits_for_the_end_of_the_function_too(store: EventStore, slow: Slow) -> None:
    # Long enough for the thread of the function to begin on a busy machine, or the first attempt ends without a call.
    async with EventBus(store, retry=QUICK, lease=short_lease(store), event_timeout=0.5) as bus:
        bus.subscribe("job", slow, id="slow")
        handle = bus.emit("job")
        await asyncio.to_thread(slow.begun.wait, 10)
        await asyncio.sleep(0.7)
        assert slow.calls == [1]
        slow.release.set()
        ended = await handle
    assert ended.errors[0].startswith("EventTimeout: stopped while it ran")
    assert (slow.calls, slow.overlapped) == ([1, 2], False)


async def test_a_claim_that_was_lost_does_not_let_the_function_run_beside_itself(store: EventStore, slow: Slow) -> None:
    """This holds on the node that lost the claim and on another node of the same process."""
    async with EventBus(store, poll_interval=0.02) as one, EventBus(store, poll_interval=0.02) as two:
        for bus in (one, two):
            bus.subscribe("job", slow, id="slow")
        event = await one.emit("job").stored()
        await asyncio.to_thread(slow.begun.wait, 10)
        await store.reset_event(event.id, reason="taken away")
        await until_status(store, event.id, EventStatus.PROCESSING)
        await asyncio.sleep(0.1)
        assert slow.calls == [1]
        slow.release.set()
        await until_status(store, event.id, EventStatus.COMPLETED)
    assert not slow.overlapped


async def test_a_shutdown_leaves_the_event_behind_and_another_worker_claims_it_when_its_lease_is_over(
    store: EventStore, slow: Slow
) -> None:
    bus = EventBus(store, lease=short_lease(store), shutdown_timeout=0.01)
    bus.subscribe("job", slow, id="slow", timeout=0.02)
    await bus.start()
    event = await bus.emit("job").stored()
    await asyncio.to_thread(slow.begun.wait, 10)
    async with asyncio.timeout(15):
        await bus.shutdown()
    slow.release.set()
    await until(lambda: not is_in_thread(event))
    async with EventBus(store, lease=short_lease(store), poll_interval=0.02) as later:
        later.subscribe("job", slow, id="slow")
        ended = await until_status(store, event.id, EventStatus.COMPLETED)
    assert ended.attempts == 2
    assert ended.errors[0].startswith("lease expired")


async def test_a_function_that_ends_during_the_shutdown_is_settled(slow: Slow) -> None:
    store = WatchedStore()
    async with working(store, slow) as worker:
        await filled(store)
        await asyncio.to_thread(slow.begun.wait, 10)
        stopping = asyncio.create_task(worker.stop(10.0))
        slow.release.set()
        await stopping
    assert len(store.in_status(EventStatus.COMPLETED)) == 1


async def test_a_step_of_a_manager_that_is_cancelled_leaves_the_event_to_its_lease(slow: Slow) -> None:
    store = WatchedStore()
    manager = EventManager(EventQueue(store))
    manager.register("job", "slow", slow)
    await manager.queue.publish("job")
    step = asyncio.create_task(manager.process_next())
    await asyncio.to_thread(slow.begun.wait, 10)
    step.cancel()
    await asyncio.wait({step})
    await asyncio.sleep(0)
    assert len(store.in_status(EventStatus.PROCESSING)) == 1


@pytest.mark.parametrize("mode", ["parallel", "bus-serial"])
def test_a_wait_for_another_event_ends_with_the_timeout_of_the_function(mode: str) -> None:
    """Otherwise the event would wait for its function, and the function for a child that no worker runs."""
    told: list[str] = []
    with SyncEventBus("memory://", retry={"max_retries": 0}, mode=mode) as bus:

        def parent(event: Event) -> None:
            try:
                bus.emit("child", delay=60.0).completed()
            except TimeoutError as error:
                told.append(str(error))
                raise

        bus.subscribe("child", lambda event: None)
        bus.subscribe("parent", parent, id="parent", timeout=0.05)
        bus.emit("parent")
        wait = threading.Event()
        for _ in range(1000):
            if told:
                break
            wait.wait(0.01)
        bus.shutdown(0.1)
    assert told == ["the attempt of handler parent is over: it does not wait for other events any more"]


async def test_a_child_process_knows_nothing_of_the_threads_of_its_parent(slow: Slow) -> None:
    threads, event = HandlerThreads(1), make_event()
    calling = asyncio.create_task(call_with_event(make_handler(slow), Context(event, "w:1"), threads).returned())
    await asyncio.to_thread(slow.begun.wait, 10)
    assert is_in_thread(event)
    child = os.fork()
    if child == 0:
        os._exit(int(is_in_thread(event)))
    assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
    slow.release.set()
    await calling
    assert not is_in_thread(event)
    threads.shutdown()
