"""Flaws of the runtime that this one extends, each shown to be absent here. docs/proof/runtime.md has the others."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.runtime.conftest import MakeBus
from tests.worker.support import WatchedStore, until

from durabus import Event, EventBus, EventBusShutdownError, EventStatus, SyncEventBus


async def test_a_bus_with_its_defaults_takes_any_number_of_events(make_bus: MakeBus) -> None:
    """There, the 101st event of a bus's life was refused."""
    bus = make_bus()
    bus.subscribe("job", lambda event: None)
    await bus.start()
    ends = await asyncio.gather(*(bus.emit("job", n) for n in range(250)))
    assert {event.status for event in ends} == {EventStatus.COMPLETED}


async def test_a_shutdown_ends_every_wait(make_bus: MakeBus) -> None:
    """There, a caller that awaited a queued event of a stopped bus waited for ever."""
    bus, never = make_bus(concurrency=1), asyncio.Event()

    async def stuck(event: Event) -> None:
        await never.wait()

    bus.subscribe("job", stuck)
    await bus.start()
    waits = [asyncio.ensure_future(bus.emit("job", n).completed()) for n in range(3)]
    await until(lambda: bus.in_flight > 0)
    await bus.shutdown(0.01)
    for error in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(error, EventBusShutdownError)
    assert (await bus.store.counts()).pending == 3


@pytest.mark.parametrize("mode", ["parallel", "bus-serial"])
async def test_an_idle_bus_rests(mode: str) -> None:
    """There, one version polled without a pause and burned a core."""
    store = WatchedStore()
    async with EventBus(store, mode=mode, poll_interval=30.0) as bus:
        bus.subscribe("job", lambda event: None)
        await bus.publish("job")
        await until(lambda: store.calls["wait"] > 0)
        before = store.calls.total()
        await asyncio.sleep(0.2)
        assert store.calls.total() - before <= 2


@pytest.mark.parametrize("mode", ["global-serial", "bus-serial"])
def test_serial_modes_hold_between_event_loops(tmp_path: Path, mode: str) -> None:
    """There, three loops overlapped, and then all of them hung."""
    inside, most, count, lock = 0, 0, 0, threading.Lock()

    def handler(event: Event) -> None:
        nonlocal inside, most, count
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.002)
        with lock:
            inside -= 1
            count += 1

    url = f"sqlite:///{tmp_path / 'loops.db'}"
    buses = [SyncEventBus(url, mode=mode, poll_interval=0.05) for _ in range(3)]
    for bus in buses:
        bus.subscribe("job", handler, id="h")
        bus.start()
    handles = [bus.emit("job") for bus in buses for _ in range(5)]
    assert {handle.completed().status for handle in handles} == {EventStatus.COMPLETED}
    for bus in buses:
        bus.shutdown()
    assert (most, count) == (1, 15)


async def test_the_same_code_has_the_same_handler_id_on_every_node(make_bus: MakeBus) -> None:
    """There, an id was made of the time of registration and a random bus id, and no shared store could use it."""

    async def handler(event: Event) -> None: ...

    ids = {make_bus().subscribe("job", handler) for _ in range(3)}
    assert len(ids) == 1


async def test_a_bus_that_was_shut_down_is_made_anew_with_its_work(make_bus: MakeBus) -> None:
    """There, an event that was running when a bus was saved never ran again, and never completed."""
    first, never, calls = make_bus(), asyncio.Event(), 0

    async def stuck(event: Event) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await never.wait()

    first.subscribe("job", stuck, id="h")
    await first.start()
    event_id = (await first.emit("job").stored()).event_id
    await until(lambda: calls == 1)
    await first.shutdown(0.01)
    second = make_bus()
    second.subscribe("job", stuck, id="h")
    await second.start()
    await until(lambda: calls == 2)
    await second.shutdown()
    ended = await second.store.get_event(event_id)
    assert ended is not None
    assert (ended.status, ended.attempts) == (EventStatus.COMPLETED, 1)


async def test_waits_outside_of_handlers_keep_the_order_of_a_serial_bus(make_bus: MakeBus) -> None:
    """There, awaiting an event jumped the queue and the lock from anywhere, so that gathered events overlapped."""
    bus, seen = make_bus(mode="bus-serial"), []

    async def handler(event: Event) -> None:
        seen.append(f"+{event.payload}")
        await asyncio.sleep(0)
        seen.append(f"-{event.payload}")

    bus.subscribe("job", handler)
    await bus.start()
    await asyncio.gather(*(bus.emit("job", n) for n in range(5)))
    assert seen == [f"{sign}{n}" for n in range(5) for sign in "+-"]


async def test_a_node_without_the_handler_does_not_complete_the_event(make_bus: MakeBus) -> None:
    """There, an event without a handler in this process was complete at once."""
    publisher, worker = await make_bus().start(), make_bus()
    handle = publisher.emit("job")
    await handle.stored()
    assert not handle.done
    worker.subscribe("job", lambda event: None)
    await worker.start()
    assert (await handle).status is EventStatus.COMPLETED


async def test_an_event_does_not_concern_the_other_buses_of_its_process() -> None:
    """There, every event scanned all live buses: 0.5 ms became 15 ms with 5,000 of them."""
    store = WatchedStore()
    buses = [EventBus(store, name=f"bus-{number}", poll_interval=60.0) for number in range(50)]
    for bus in buses:
        bus.subscribe("job", lambda event: None)
        await bus.start()
    await until(lambda: store.calls["wait"] >= len(buses))
    before = store.calls.total()
    for _ in range(20):
        await buses[0].publish("job")
    assert store.calls.total() - before < 200, "each of 50 buses would have asked 20 times"
    await asyncio.gather(*(bus.shutdown() for bus in buses))
