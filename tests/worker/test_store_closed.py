"""If a worker ends without having been stopped, every waiting caller gets an error."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.seeds.support import Gate, Recorder

from durabus import EventBus, EventBusShutdownError, EventManager, EventQueue, EventStore, StoreClosedError, open_store

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    store = await open_store("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/bus.db")
    yield store
    await store.close()


def worker_task() -> asyncio.Task[object]:
    return next(task for task in asyncio.all_tasks() if task.get_name() == "durabus-worker-default")


async def test_a_publish_that_waits_for_a_local_handler_gets_the_error(store: EventStore) -> None:
    gate = Gate()
    bus = EventBus(store, poll_interval=0.01)
    bus.subscribe("user.*", gate, timeout=None)
    publishing = asyncio.create_task(bus.publish("user.created"))
    await gate.entered.wait()
    await store.close()
    with pytest.raises(StoreClosedError, match="closed under the worker of bus 'default'"):
        await publishing
    await gate.cancelled.wait()
    await bus.shutdown()


async def test_a_publish_gets_the_error_even_if_the_worker_has_no_reason_to_call_the_store(store: EventStore) -> None:
    gate = Gate()
    bus = EventBus(store, concurrency=1, poll_interval=3600, lease=0.3)
    bus.subscribe("user.*", gate, timeout=None)
    publishing = asyncio.create_task(bus.publish("user.created"))
    await gate.entered.wait()
    await store.close()
    with pytest.raises(StoreClosedError, match="closed under"):
        await publishing
    await bus.shutdown()


async def test_a_caller_that_waits_until_the_bus_is_idle_gets_the_error(store: EventStore) -> None:
    gate = Gate()
    bus = EventBus(store, poll_interval=0.01)
    bus.subscribe("user.*", gate)
    await bus.start()
    bus.emit("user.created")
    await gate.entered.wait()
    waiting = asyncio.create_task(bus.wait_until_idle())
    await store.close()
    with pytest.raises(StoreClosedError, match="closed under"):
        await waiting
    await bus.shutdown()


async def test_a_bus_takes_no_more_events_after_its_store_was_closed(store: EventStore) -> None:
    gate = Gate()
    bus = EventBus(store, poll_interval=0.01)
    bus.subscribe("user.*", gate)
    publishing = asyncio.create_task(bus.publish("user.created"))
    await gate.entered.wait()
    await store.close()
    with pytest.raises(StoreClosedError):
        await publishing
    with pytest.raises(StoreClosedError, match="closed under"):
        await bus.publish("user.created")
    with pytest.raises(StoreClosedError, match="closed under"):
        bus.emit("user.created")
    await bus.shutdown()


async def test_the_loop_of_a_manager_ends_with_the_reason(store: EventStore) -> None:
    manager, handler = EventManager(EventQueue(store), poll_delay=0.01), Recorder()
    manager.register("foo", "handler1", handler)
    await manager.queue.publish("foo")
    loop = asyncio.create_task(manager.run_process_loop())
    await handler.called()
    await store.close()
    with pytest.raises(StoreClosedError, match="closed under"):
        await loop


async def test_a_manager_may_run_again_on_what_is_left_of_its_stop(store: EventStore) -> None:
    manager, handler = EventManager(EventQueue(store), poll_delay=0.01), Recorder()
    manager.register("foo", "handler1", handler)
    for _ in range(2):
        loop = asyncio.create_task(manager.run_process_loop())
        await manager.queue.publish("foo")
        await handler.called(handler.calls + 1)
        manager.stop()
        await loop
    assert handler.calls == 2


async def test_a_worker_reports_that_other_code_cancelled_its_task(store: EventStore) -> None:
    gate = Gate()
    bus = EventBus(store)
    bus.subscribe("user.*", gate)
    publishing = asyncio.create_task(bus.publish("user.created"))
    await gate.entered.wait()
    worker_task().cancel()
    with pytest.raises(EventBusShutdownError, match="ended from outside"):
        await publishing
    await gate.cancelled.wait()
    with pytest.raises(EventBusShutdownError, match="ended from outside"):
        bus.emit("user.created")
    await bus.shutdown()


async def test_a_loop_that_is_cancelled_twice_leaves_no_worker_behind(store: EventStore) -> None:
    manager, gate = EventManager(EventQueue(store), poll_delay=0.01), Gate()
    manager.register("foo", "handler1", gate)
    await manager.queue.publish("foo")
    loop = asyncio.create_task(manager.run_process_loop())
    await gate.entered.wait()
    worker = worker_task()
    for _ in range(2):
        loop.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await loop
    gate.opened.set()
    await asyncio.wait({worker})
    assert (await store.counts()).completed == 1
