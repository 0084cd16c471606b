"""Seed 003: shutdown is graceful."""

import asyncio
import inspect
import threading

import pytest
from tests.seeds.support import Gate, Recorder, status_of, stored, until

from durabus import (
    Event,
    EventBus,
    EventBusShutdownError,
    EventStatus,
    EventStore,
    StoreClosedError,
    open_store,
)

DEFAULT_SHUTDOWN_TIMEOUT = inspect.signature(EventBus).parameters["shutdown_timeout"].default


def test_the_default_timeout_is_thirty_seconds() -> None:
    assert DEFAULT_SHUTDOWN_TIMEOUT == 30.0


async def test_nothing_new_is_taken_after_shutdown(store: EventStore) -> None:
    bus = EventBus(store)
    bus.subscribe("user.*", Recorder())
    await bus.start()
    await bus.shutdown()
    with pytest.raises(EventBusShutdownError, match="publish"):
        await bus.publish("user.created")
    with pytest.raises(EventBusShutdownError, match="emit"):
        bus.emit("user.created")
    with pytest.raises(EventBusShutdownError, match="subscribe"):
        bus.subscribe("user.*", Recorder())
    with pytest.raises(EventBusShutdownError, match="start"):
        await bus.start()
    assert (await store.read_log()).entries == []


async def test_nothing_new_is_taken_during_shutdown(store: EventStore) -> None:
    bus, gate = EventBus(store), Gate()
    bus.subscribe("user.*", gate)
    await bus.start()
    bus.emit("user.created")
    await gate.entered.wait()
    shutting_down = asyncio.create_task(bus.shutdown())
    await asyncio.sleep(0)
    with pytest.raises(EventBusShutdownError):
        await bus.publish("user.created")
    with pytest.raises(EventBusShutdownError):
        bus.subscribe("user.*", Recorder())
    gate.opened.set()
    await shutting_down


async def test_shutdown_waits_for_events_in_flight(store: EventStore) -> None:
    bus, gate = EventBus(store), Gate()
    bus.subscribe("user.*", gate)
    await bus.start()
    handle = bus.emit("user.created")
    await gate.entered.wait()
    shutting_down = asyncio.create_task(bus.shutdown())
    await asyncio.sleep(0.02)
    assert not shutting_down.done()
    gate.opened.set()
    await shutting_down
    assert not gate.cancelled.is_set()
    assert await status_of(store, handle.event_id) is EventStatus.COMPLETED


async def test_shutdown_claims_no_more_events(store: EventStore) -> None:
    bus, gate = EventBus(store), Gate()
    bus.subscribe("user.*", gate)
    await bus.start()
    bus.emit("user.created")
    await gate.entered.wait()
    shutting_down = asyncio.create_task(bus.shutdown())
    await asyncio.sleep(0)
    producer = EventBus(store)
    event_id = await producer.publish("user.created")
    gate.opened.set()
    await shutting_down
    assert await status_of(store, event_id) is EventStatus.PENDING
    await producer.shutdown()


@pytest.mark.parametrize("where", ["constructor", "argument"])
async def test_what_does_not_finish_in_time_goes_back_to_the_queue(store: EventStore, where: str) -> None:
    bus = EventBus(store, shutdown_timeout=0.02) if where == "constructor" else EventBus(store)
    gate = Gate()
    bus.subscribe("user.*", gate)
    await bus.start()
    handle = bus.emit("user.created")
    await gate.entered.wait()
    await bus.shutdown(None if where == "constructor" else 0.02)
    event = await stored(store, handle.event_id)
    assert gate.cancelled.is_set()
    assert (event.status, event.attempts, event.retry_count) == (EventStatus.PENDING, 0, 0)


async def test_what_went_back_to_the_queue_is_handled_by_the_next_bus(store: EventStore) -> None:
    gate, handler = Gate(), Recorder()
    bus = EventBus(store, shutdown_timeout=0)
    bus.subscribe("user.*", gate)
    await bus.start()
    handle = bus.emit("user.created")
    await gate.entered.wait()
    await bus.shutdown()
    async with EventBus(store) as successor:
        successor.subscribe("user.*", handler)
        await handler.called()
    assert [event.event_id for event in handler.events] == [handle.event_id]


async def test_a_publisher_that_still_waits_gets_the_shutdown_error(store: EventStore) -> None:
    bus, gate = EventBus(store), Gate()
    bus.subscribe("user.*", gate)
    publishing = asyncio.create_task(bus.publish("user.created"))
    await gate.entered.wait()
    await bus.shutdown(0.01)
    with pytest.raises(EventBusShutdownError, match="before this event ended"):
        await publishing


async def test_what_was_emitted_just_before_is_not_lost(store: EventStore) -> None:
    bus = EventBus(store)
    await bus.start()
    handles = [bus.emit("user.created", {"n": n}) for n in range(10)]
    await bus.shutdown()
    assert [await status_of(store, handle.event_id) for handle in handles] == [EventStatus.PENDING] * 10


async def test_a_handler_that_refuses_to_be_cancelled_does_not_delay_shutdown_for_ever(store: EventStore) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def stubborn(event: Event) -> None:
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    bus = EventBus(store, shutdown_timeout=0.01)
    bus.subscribe("user.*", stubborn)
    await bus.start()
    bus.emit("user.created")
    await entered.wait()
    shutting_down = asyncio.create_task(bus.shutdown())
    done, _ = await asyncio.wait({shutting_down}, timeout=20)
    release.set()
    await shutting_down
    assert done, "shutdown waited for a handler without end"


async def test_a_plain_function_that_does_not_end_does_not_delay_shutdown(store: EventStore) -> None:
    entered, release = threading.Event(), threading.Event()

    def blocking(event: Event) -> None:
        entered.set()
        release.wait(10)

    bus = EventBus(store, shutdown_timeout=0.01)
    bus.subscribe("user.*", blocking, timeout=None)
    await bus.start()
    handle = bus.emit("user.created")
    await asyncio.to_thread(entered.wait, 10)
    await bus.shutdown()
    # A thread cannot be stopped, so no worker may begin beside it before the lease is over.
    assert await status_of(store, handle.event_id) is EventStatus.PROCESSING
    release.set()


async def test_shutdown_may_be_repeated(store: EventStore) -> None:
    bus = EventBus(store)
    bus.subscribe("user.*", Recorder())
    await bus.start()
    await bus.shutdown()
    await bus.shutdown()


async def test_every_caller_of_shutdown_waits_until_it_is_over(store: EventStore) -> None:
    bus, gate = EventBus(store), Gate()
    bus.subscribe("user.*", gate)
    await bus.start()
    handle = bus.emit("user.created")
    await gate.entered.wait()
    callers = [asyncio.create_task(bus.shutdown()) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert not any(caller.done() for caller in callers)
    gate.opened.set()
    await asyncio.gather(*callers)
    assert await status_of(store, handle.event_id) is EventStatus.COMPLETED


async def test_a_bus_that_was_never_started_can_be_shut_down(store: EventStore, store_url: str) -> None:
    await EventBus(store).shutdown()
    await EventBus(store_url).shutdown()


async def test_shutdown_closes_the_store_that_the_bus_opened(store_url: str) -> None:
    bus = EventBus(store_url)
    await bus.start()
    await bus.shutdown()
    with pytest.raises(StoreClosedError):
        await bus.store.counts()


async def test_shutdown_leaves_a_store_open_that_the_bus_was_given(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder())
        await bus.publish("user.created")
    assert (await store.counts()).completed == 1


async def test_shutdown_returns_when_the_store_was_closed_before(store_url: str) -> None:
    store = await open_store(store_url)
    bus = EventBus(store)
    bus.subscribe("user.*", Recorder())
    await bus.publish("user.created")
    await store.close()
    await bus.shutdown()


async def test_shutdown_returns_when_the_worker_has_noticed_that_the_store_is_closed(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(store_url)
    bus = EventBus(store, poll_interval=0.01)
    bus.subscribe("user.*", Recorder())
    await bus.publish("user.created")
    await store.close()

    async def noticed() -> bool:
        return "closed under" in caplog.text

    await until(noticed)
    await bus.shutdown()


async def test_handlers_that_were_done_before_the_time_was_over_do_not_run_again(store: EventStore) -> None:
    done, gate, second = Recorder(), Gate(), Recorder()
    bus = EventBus(store, shutdown_timeout=0.01)
    bus.subscribe("user.*", done, id="done")
    bus.subscribe("user.*", gate, id="slow")
    await bus.start()
    bus.emit("user.created")
    await gate.entered.wait()
    await bus.shutdown()
    async with EventBus(store) as successor:
        successor.subscribe("user.*", done, id="done")
        successor.subscribe("user.*", second, id="slow")
        await second.called()
    assert (done.calls, second.calls) == (1, 1)
