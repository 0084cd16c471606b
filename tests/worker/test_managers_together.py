"""Managers and buses with different handlers on one queue: every handler has every event before it completes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.places import EVERYWHERE, fresh_url
from tests.seeds.support import until as until_true
from tests.seeds.support import until_status
from tests.worker.support import until

from durabus import Event, EventBus, EventManager, EventQueue, EventStatus, EventStore, ManualClock, open_store
from durabus.errors import StoreUnavailableError
from durabus.stores.memory.store import MemoryStore
from durabus.worker.registry import REFRESH, RESTART

EVENTS = 40

Open = Callable[[], Awaitable[EventStore]]


@pytest.fixture(params=EVERYWHERE)
async def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Open the same queue again, over connections of its own where the store has some."""
    memory = MemoryStore()
    url = fresh_url(request.param, request, tmp_path)
    async with AsyncExitStack() as stack:

        async def one() -> EventStore:
            store = memory if request.param == "memory" else await open_store(url)
            stack.push_async_callback(store.close)
            return store

        yield one


class Notes:
    """The calls of handlers, with the manager that made each."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()

    def handler(self, name: str) -> Callable[[Event], Awaitable[None]]:
        async def handle(event: Event) -> None:
            self.calls[name, event.payload["n"]] += 1

        return handle

    @property
    def complete(self) -> bool:
        return len(self.calls) == 2 * EVENTS

    def check(self) -> None:
        assert self.calls == {(name, n): 1 for name in ("mail", "audit") for n in range(EVENTS)}


async def manager_of(store: EventStore, notes: Notes, name: str) -> EventManager:
    manager = EventManager(EventQueue(store), poll_delay=0.05)
    manager.register("order.*", name, notes.handler(name))
    return manager


async def ended(store: EventStore, events: list[Event]) -> None:
    for event in events:
        await until_status(store, event.id, EventStatus.COMPLETED)


async def test_every_handler_of_two_managers_has_every_event(open_one: Open) -> None:
    notes, first, second = Notes(), await open_one(), await open_one()
    managers = [await manager_of(first, notes, "mail"), await manager_of(second, notes, "audit")]
    async with asyncio.TaskGroup() as group:
        for manager in managers:
            group.create_task(manager.run_process_loop())
        await announced(first, 2)
        events = [await managers[0].queue.publish("order.placed", {"n": n}) for n in range(EVENTS)]
        await until(lambda: notes.complete)
        await ended(first, events)
        for manager in managers:
            manager.stop()
    notes.check()


async def test_every_handler_of_a_manager_and_of_a_bus_has_every_event(open_one: Open) -> None:
    notes, first, second = Notes(), await open_one(), await open_one()
    manager, bus = await manager_of(first, notes, "mail"), EventBus(second, poll_interval=0.05)
    bus.subscribe("order.*", notes.handler("audit"), id="audit")
    async with asyncio.TaskGroup() as group, bus:
        group.create_task(manager.run_process_loop())
        await announced(first, 2)
        events = [await manager.queue.publish("order.placed", {"n": n}) for n in range(EVENTS)]
        await until(lambda: notes.complete)
        await ended(first, events)
        manager.stop()
    notes.check()


async def announced(store: EventStore, count: int) -> None:
    async def known() -> bool:
        return len((await store.list_handlers("default")).handlers) == count

    await until_true(known)


async def test_a_single_step_runs_a_handler_that_another_node_has_offered(open_one: Open) -> None:
    notes, first, second = Notes(), await open_one(), await open_one()
    manager, bus = await manager_of(first, notes, "mail"), EventBus(second, poll_interval=0.05)
    assert await manager.process_next() is None
    bus.subscribe("order.*", notes.handler("audit"), id="audit")
    async with bus:
        handle = bus.emit("order.placed", {"n": 0})
        stepped: list[Event] = []

        async def step() -> bool:
            event = await manager.process_next()
            stepped.extend([] if event is None else [event])
            return bool(stepped)

        await until_true(step)
        async with asyncio.timeout(30):
            await handle.completed()
    assert notes.calls == {("mail", 0): 1, ("audit", 0): 1}
    assert stepped[0].event_id == handle.event_id


async def test_single_steps_of_two_managers_complete_nothing_that_the_other_has_not_had() -> None:
    clock = ManualClock()
    store, notes = MemoryStore(clock), Notes()
    mail, audit = await manager_of(store, notes, "mail"), await manager_of(store, notes, "audit")
    for manager in (mail, audit):
        assert await manager.process_next() is None
    event = await mail.queue.publish("order.placed", {"n": 0})
    await mail.process_next()
    await until_status(store, event.id, EventStatus.PENDING)
    clock.advance(1.0)
    await audit.process_next()
    await until_status(store, event.id, EventStatus.COMPLETED)
    assert notes.calls == {("mail", 0): 1, ("audit", 0): 1}


async def test_a_manager_that_takes_single_steps_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryStore(), 1000.0
    monkeypatch.setattr("durabus.worker.registry.monotonic", lambda: now)
    manager = await manager_of(store, Notes(), "mail")
    await manager.process_next()
    (first,) = (await store.list_handlers("default")).handlers
    await manager.process_next()
    assert (await store.list_handlers("default")).handlers == [first], "not at every step"
    now += REFRESH
    await manager.process_next()
    (later,) = (await store.list_handlers("default")).handlers
    assert later.last_seen_ts > first.last_seen_ts


async def test_a_manager_that_was_stopped_is_waited_for_a_short_time_and_may_begin_again() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    manager = await manager_of(store, Notes(), "mail")
    for _ in range(2):
        running = asyncio.create_task(manager.run_process_loop())
        await announced(store, 1)
        clock.advance(RESTART + 1)
        await announced(store, 1)
        manager.stop()
        await running
        clock.advance(RESTART + 1)
        assert (await store.list_handlers("default")).handlers == []


class DownAtFirst(MemoryStore):
    """Refuses the first announcement."""

    refused = False

    async def register_handlers(self, *arguments: object, **options: object) -> None:
        if not self.refused:
            self.refused = True
            raise StoreUnavailableError("no reply")
        await super().register_handlers(*arguments, **options)  # type: ignore[arg-type]


async def test_a_loop_that_begins_while_the_store_is_down_begins_when_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.store.outage.FIRST_PAUSE", 0.01)
    store, notes = DownAtFirst(), Notes()
    manager = await manager_of(store, notes, "mail")
    event = await manager.queue.publish("order.placed", {"n": 0})
    running = asyncio.create_task(manager.run_process_loop())
    await until_status(store, event.id, EventStatus.COMPLETED)
    manager.stop()
    await running
    assert store.refused
