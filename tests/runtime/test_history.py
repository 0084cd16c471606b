"""How much a bus keeps, and what becomes of buses that no node serves any more."""

import asyncio

import pytest
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until as comes_true

from durabus import (
    ConfigurationError,
    Context,
    DLQInspector,
    Event,
    EventBus,
    EventStatus,
    EventStore,
    ManualClock,
    UnrecoverableError,
    open_store,
)
from durabus.bus import history
from durabus.errors import HistoryFullError


async def test_the_newest_completed_events_are_kept(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus(max_history_size=5)
    bus.subscribe("job", lambda event: None)
    await bus.start()
    for n in range(20):
        await bus.publish("job", n)

    async def trimmed() -> bool:
        return (await store.counts("default")).completed == 5

    await comes_true(trimmed)
    newest = await bus.find("job")
    assert newest is not None
    assert newest.payload == 19
    assert await bus.find("job", where=lambda event: event.payload < 15) is None


async def test_live_events_and_dead_letters_are_never_dropped(make_bus: MakeBus, store: EventStore) -> None:
    bus, release = make_bus(max_history_size=0), asyncio.Event()

    async def handler(event: object) -> None:
        payload = getattr(event, "payload", None)
        if payload == "dead":
            raise UnrecoverableError("no")
        if payload == "live":
            await release.wait()

    bus.subscribe("job", handler)
    await bus.start()
    live = bus.emit("job", "live")
    await bus.publish("job", "dead")
    for n in range(10):
        await bus.publish("job", n)

    async def trimmed() -> bool:
        return (await store.counts("default")).completed == 0

    await comes_true(trimmed)
    counts = await store.counts("default")
    assert (counts.processing, counts.completed_with_errors) == (1, 1)
    release.set()
    assert (await live).status is EventStatus.COMPLETED


async def test_a_full_bus_that_may_not_drop_refuses_and_keeps_what_it_has(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus(max_history_size=3, max_history_drop=False)
    bus.subscribe("job", lambda event: None)
    await bus.start()
    for n in range(3):
        await bus.publish("job", n)
    with pytest.raises(HistoryFullError, match="holds 3 events, 1 more are above max_history_size=3"):
        await bus.publish("job", 3)
    with pytest.raises(HistoryFullError):
        await bus.emit("job", 4).stored()
    assert (await store.counts("default")).completed == 3
    assert await store.cleanup_excess_events("default", keep=0) == 3
    await bus.publish("job", 5)


async def test_a_full_bus_refuses_the_children_of_a_handler(make_bus: MakeBus, store: EventStore) -> None:
    """They are stored with the success of the handler. Without room for them, the attempt has failed."""
    bus = make_bus(max_history_size=3, max_history_drop=False)
    bus.subscribe("mail", lambda event: None)

    @bus.on("order", id="order")
    async def order(event: Event, ctx: Context) -> None:
        for n in range(event.payload):
            ctx.emit("mail", n)

    await bus.start()
    dead = await store.get_event(await bus.publish("order", 3))
    assert dead is not None
    assert dead.status is EventStatus.FAILED
    assert "a child event was not stored: HistoryFullError: bus 'default' holds 1 events, 3 more" in dead.errors[0]
    assert (await store.counts("default")).completed == 0
    await DLQInspector(store).purge(older_than_days=0)
    await bus.publish("order", 2)
    assert (await store.counts("default")).completed == 3


@pytest.mark.parametrize("size", [-1, True, 1.5])
async def test_an_invalid_history_size_is_refused(make_bus: MakeBus, size: object) -> None:
    with pytest.raises(ConfigurationError, match="max_history_size"):
        make_bus(max_history_size=size)


async def test_a_bus_that_can_hold_nothing_is_refused(make_bus: MakeBus) -> None:
    with pytest.raises(ConfigurationError, match="nothing could be published"):
        make_bus(max_history_size=0, max_history_drop=False)


async def test_a_bus_is_stopped_until_a_node_says_otherwise(make_bus: MakeBus, store: EventStore) -> None:
    one, two = make_bus(), make_bus()
    for bus in (one, two):
        bus.subscribe("job", lambda event: None, id=f"h{id(bus)}")
        await bus.start()
    await one.shutdown()
    (known,) = await store.list_buses()
    assert known.stopped_ts is not None
    two._registry._changed.set()  # as its timer does every ten seconds

    async def active() -> bool:
        return (await store.list_buses())[0].stopped_ts is None

    await comes_true(active)


async def test_buses_that_come_and_go_leave_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bus is used once. A node that stops a day later deletes the buses that have stopped."""
    monkeypatch.setattr(history, "ARCHIVE_EVERY", 0.0)
    clock = ManualClock()
    store = await open_store(url, clock=clock)

    async def use_once(name: str) -> None:
        bus = EventBus(store, name=name, max_history_size=0)
        bus.subscribe("job", lambda event: None)
        await bus.start()
        await bus.publish("job")
        await bus.shutdown()

    for n in range(10):
        await use_once(f"bus-{n}")
    assert len(await store.list_buses()) == 10
    assert await store.active_buses() == []
    clock.advance(86_400)
    await use_once("last")
    assert [known.bus for known in await store.list_buses()] == ["last"]
    assert (await store.counts()).completed == 0
    assert (await store.read_log()).entries == []
    await store.close()


async def test_stopping_nodes_look_for_buses_to_archive_now_and_then_and_find_all(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, instant, archive = 0, 0.0, store.archive_buses

    async def counted(*, stopped_for: float, limit: int) -> int:
        nonlocal looks
        looks += 1
        assert stopped_for == 60
        return await archive(stopped_for=0, limit=limit)  # as if that time were over

    monkeypatch.setattr(store, "archive_buses", counted)
    monkeypatch.setattr(history, "monotonic", lambda: instant)
    monkeypatch.setattr(history, "ARCHIVE_AT_ONCE", 2)

    async def use(name: str) -> None:
        bus = make_bus(name=name, archive_after=60)
        bus.subscribe("job", lambda event: None)
        await bus.start()
        await bus.shutdown()

    await use("first")
    assert looks == 1
    for number in range(5):
        await use(f"bus-{number}")
    assert looks == 1
    assert len(await store.list_buses()) == 5
    instant = 2 * history.ARCHIVE_EVERY
    await use("last")
    assert looks == 5
    assert await store.list_buses() == []


async def test_too_short_a_memory_of_stopped_buses_is_refused(make_bus: MakeBus) -> None:
    with pytest.raises(ConfigurationError, match="archive_after=5: must be at least 60 s"):
        make_bus(archive_after=5)


async def test_a_stopped_bus_with_work_is_not_forgotten(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    bus.subscribe("job", lambda event: None)
    await bus.start()
    await bus.emit("job", delay=60).stored()
    await bus.shutdown()
    assert await store.archive_buses(stopped_for=0.0) == 0
    assert await store.active_buses() == ["default"]
    assert [known.bus for known in await store.list_buses()] == ["default"]
