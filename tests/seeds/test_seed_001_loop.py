"""Seed 001, second part continued: the loop that processes events until it is stopped."""

import asyncio

import pytest
from tests.seeds.support import Gate, Recorder, status_of, until

from durabus import ConfigurationError, Event, EventManager, EventQueue, EventStatus, EventStore, ManualClock
from durabus.queue import event_manager


async def test_the_loop_polls_dispatches_and_finalizes_until_it_is_stopped(store: EventStore) -> None:
    manager = EventManager(EventQueue(store), poll_delay=0.01)
    handler = Recorder()
    manager.register("foo", "handler1", handler)
    loop = asyncio.create_task(manager.run_process_loop())
    for n in range(5):
        await manager.queue.publish("foo", {"n": n})
    await handler.called(5)
    manager.stop()
    await loop
    counts = await store.counts()
    assert (counts.completed, counts.pending, counts.processing) == (5, 0, 0)


async def test_the_loop_polls_at_the_configured_interval_when_no_hint_comes(
    timed_store: EventStore, clock: ManualClock
) -> None:
    manager, handler = EventManager(EventQueue(timed_store), poll_delay=0.01), Recorder()
    manager.register("foo", "handler1", handler)
    await manager.queue.publish("foo", delay=3600)
    loop = asyncio.create_task(manager.run_process_loop())
    await asyncio.sleep(0)
    clock.advance(3600)  # the loop gets no hint of this
    await handler.called()
    manager.stop()
    await loop


async def test_stop_lets_the_loop_finish_what_runs(store: EventStore) -> None:
    manager, gate = EventManager(EventQueue(store), poll_delay=0.01), Gate()
    manager.register("foo", "handler1", gate)
    event = await manager.queue.publish("foo")
    loop = asyncio.create_task(manager.run_process_loop())
    await gate.entered.wait()
    manager.stop()
    gate.opened.set()
    await loop
    assert await status_of(store, event.id) is EventStatus.COMPLETED


async def test_stop_before_the_loop_began_is_heeded(store: EventStore) -> None:
    manager = EventManager(EventQueue(store), poll_delay=0.01)
    manager.register("foo", "handler1", Recorder())
    loop = asyncio.create_task(manager.run_process_loop())
    manager.stop()
    async with asyncio.timeout(20):
        await loop


async def test_the_loop_cleans_up_handler_states_periodically(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(event: Event) -> int:
        return 3

    monkeypatch.setattr(event_manager, "CLEANUP_EVERY", 0.02)
    manager = EventManager(EventQueue(store), poll_delay=0.01)
    manager.register("foo", "handler1", count)
    event = await manager.queue.publish("foo")
    loop = asyncio.create_task(manager.run_process_loop())

    async def cleaned() -> bool:
        return await status_of(store, event.id) is EventStatus.COMPLETED and not await store.list_results(event.id)

    await until(cleaned)
    manager.stop()
    await loop


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"concurrency": 10_001}, {"poll_delay": 0}], ids=str)
async def test_a_manager_with_options_that_cannot_work_is_refused(
    timed_store: EventStore, options: dict[str, int]
) -> None:
    with pytest.raises(ConfigurationError):
        EventManager(EventQueue(timed_store), **options)  # type: ignore[arg-type]


async def test_a_manager_without_handlers_takes_nothing_from_the_queue(store: EventStore) -> None:
    manager = EventManager(EventQueue(store), poll_delay=0.01)
    event = await manager.queue.publish("foo")
    loop = asyncio.create_task(manager.run_process_loop())
    await asyncio.sleep(0.05)
    manager.stop()
    await loop
    assert await status_of(store, event.id) is EventStatus.PENDING
