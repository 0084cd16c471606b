"""Handlers that are registered but that no live node has: their events wait in place, and the log says for what."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.places import EVERYWHERE, fresh_url, short_lease
from tests.seeds.support import Recorder, until_status
from tests.seeds.support import until as until_true
from tests.worker.support import until

from durabus import (
    ConfigurationError,
    Context,
    Event,
    EventBus,
    EventStatus,
    EventStore,
    ManualClock,
    Snooze,
    open_store,
)
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.handler import HandlerInfo
from durabus.model.result import offer
from durabus.model.settlement import Keep, Release
from durabus.model.statuses import TERMINAL
from durabus.stores.memory.store import MemoryStore
from durabus.worker import executor
from durabus.worker.registry import ALIVE_WITHIN, Registry

LIVE = 0.05


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.worker.missing_handlers.LIVE", LIVE)
    monkeypatch.setattr("durabus.worker.registry.LOOK", 0.02)


@pytest.fixture(params=EVERYWHERE)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A store that knows a handler of a node which is gone."""
    store = await open_store(fresh_url(request.param, request, tmp_path))
    await forget_nothing(store)
    yield store
    await store.close()


async def forget_nothing(store: EventStore) -> None:
    old = HandlerInfo(handler_id="old", pattern="job")
    await store.register_handlers("default", "web-2:7:dead", [old], kept_for=None)
    await asyncio.sleep(LIVE)


async def waiting(bus: EventBus, event: Event) -> None:
    assert bus._worker is not None
    waiting = bus._worker._slots.executor
    await until(lambda: any(one.claim.event.id == event.id for one in waiting.held | waiting.held_without_lock))


async def trail(store: EventStore, event: Event) -> list[str]:
    return [str(entry.action) for entry in await store.read_event_log(event.id)]


async def test_an_event_for_a_handler_that_no_live_node_has_waits_in_place_and_says_why(store: EventStore) -> None:
    new = Recorder()
    lease = short_lease(store)
    async with EventBus(store, lease=lease, poll_interval=0.02) as bus:
        bus.subscribe("job", new, id="new")
        event = await bus.emit("job").stored()
        await waiting(bus, event)
        before = await trail(store, event)
        await asyncio.sleep(1.2 * lease)  # longer than its lease, and than many rounds would take
        assert await trail(store, event) == before
        assert before == ["PUBLISHED", "PICKED", "RELEASED", "PICKED"]
        released = (await store.read_event_log(event.id))[2]
        assert re.fullmatch(r"waits for handler old, last seen on node web-2:7:dead \d+ s ago", released.reason or "")
        assert await store.unregister_handler("default", "old")
        await until_status(store, event.id, EventStatus.COMPLETED)
    assert new.calls == 1
    assert len(await trail(store, event)) <= 8


async def test_an_event_with_an_offered_handler_is_not_held_without_the_lock_of_its_bus(store: EventStore) -> None:
    """The node of the handler may come back and begin it at any time, while the lock belongs to another event."""
    event = (await store.add_events([new_event("job")]))[0]
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="gone", token=new_token(), limit=1))
    await store.keep_results([Keep(claim.ref, (offer("old"),))])
    await store.settle_events([Release(claim.ref)])
    async with EventBus(store, mode="bus-serial", poll_interval=0.02) as bus:
        bus.subscribe("job", Recorder(), id="new")
        await until_true(lambda: has_returned(store, event, times=3))
        assert bus._worker is not None
        assert not bus._worker._claims.held_without_lock
        assert not bus._worker._without_lock.tasks


async def has_returned(store: EventStore, event: Event, times: int) -> bool:
    return (await trail(store, event)).count("RELEASED") >= times


async def test_the_handler_gets_the_event_when_a_node_has_it_again(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.worker.registry.REFRESH", LIVE / 2)  # a node that lives announces itself in time
    new, old = Recorder(), Recorder()
    async with EventBus(store, poll_interval=0.02) as bus, EventBus(store, poll_interval=0.02) as back:
        bus.subscribe("job", new, id="new")
        event = await bus.emit("job").stored()
        await waiting(bus, event)
        back.subscribe("job", old, id="old")
        await until_status(store, event.id, EventStatus.COMPLETED)
    assert (new.calls, old.calls) == (1, 1)


async def test_a_handler_that_waits_here_does_not_delay_the_one_whose_node_comes_back(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.worker.registry.REFRESH", LIVE / 2)
    old = Recorder()

    async def waits(event: Event, ctx: Context) -> None:
        await ctx.wait_for("never")

    async with EventBus(store, poll_interval=0.02) as bus, EventBus(store, poll_interval=0.02) as back:
        bus.subscribe("job", waits, id="waits")
        event = await bus.emit("job").stored()
        while "RELEASED" not in await trail(store, event):  # noqa: ASYNC110  (the store has no such event)
            await asyncio.sleep(0.01)
        back.subscribe("job", old, id="old")
        await until(lambda: old.calls == 1)


async def steps_and_sleeps(event: Event, ctx: Context) -> None:
    await ctx.step("charge", str)
    await ctx.sleep(0.2)


async def sleeps(event: Event, ctx: Context) -> None:
    await ctx.sleep(0.2)


async def snoozes(event: Event, ctx: Context) -> None:
    raise Snooze(0.2)


async def waits_for_an_event(event: Event, ctx: Context) -> None:
    await ctx.wait_for("paid", timeout=0.2)


async def is_stopped_after_a_step(event: Event, ctx: Context) -> None:
    await ctx.step("charge", str)
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "begins",
    [steps_and_sleeps, sleeps, snoozes, waits_for_an_event, is_stopped_after_a_step],
    ids=lambda one: one.__name__,
)
async def test_an_event_whose_handler_has_begun_does_not_complete_without_it(
    store: EventStore, monkeypatch: pytest.MonkeyPatch, begins: Callable[[Event, Context], Awaitable[None]]
) -> None:
    """The next node offers the handler, because a live node seems to have it. Then the handler is gone for good."""
    monkeypatch.setattr("durabus.worker.missing_handlers.LIVE", 2.0)
    old = EventBus(store, poll_interval=0.02)
    old.subscribe("job", begins, id="old")
    await old.start()
    event = await old.emit("job").stored()
    await until_true(lambda: has_begun(store, event))
    await old.shutdown(0.1)
    info = HandlerInfo(handler_id="old", pattern="job")
    await store.register_handlers("default", "web-2:7:dead", [info], kept_for=None)
    async with EventBus(store, poll_interval=0.02) as bus:
        bus.subscribe("other", Recorder(), id="other")
        await bus.start()
        await until_true(lambda: is_offered(store, event))
        assert await store.unregister_handler("default", "old")
        ended = await until_status(store, event.id, *TERMINAL)
    assert ended.status is EventStatus.FAILED
    assert ended.errors == ("old had begun, and no node has it any more",)


@pytest.mark.parametrize("unhandled", ["complete", "dead_letter", "keep"])
async def test_kept_steps_show_that_a_handler_has_begun(store: EventStore, unhandled: str) -> None:
    """A process that dies after a step leaves no result of the handler itself."""
    old = EventBus(store, poll_interval=0.02)
    old.subscribe("job", is_stopped_after_a_step, id="old")
    await old.start()
    event = await old.emit("job").stored()
    await until_true(lambda: has_begun(store, event))
    await old.shutdown(0.1)
    assert await store.unregister_handler("default", "old")
    async with EventBus(store, poll_interval=0.02, unhandled=unhandled) as bus:
        bus.subscribe("other", Recorder(), id="other")
        await bus.start()
        ended = await until_status(store, event.id, *TERMINAL)
    assert ended.status is EventStatus.FAILED
    assert ended.errors == ("old had begun, and no node has it any more",)


async def has_begun(store: EventStore, event: Event) -> bool:
    return bool((await store.read_results([event.id]))[0])


async def is_offered(store: EventStore, event: Event) -> bool:
    return any(one.handler_id == "old" and one.is_offered for one in (await store.read_results([event.id]))[0])


async def test_the_handler_gets_the_event_when_this_node_subscribes_it(store: EventStore) -> None:
    new, old = Recorder(), Recorder()
    async with EventBus(store, poll_interval=0.02) as bus:
        bus.subscribe("job", new, id="new")
        event = await bus.emit("job").stored()
        await waiting(bus, event)
        bus.subscribe("job", old, id="old")
        await until_status(store, event.id, EventStatus.COMPLETED)
    assert (new.calls, old.calls) == (1, 1)


async def test_events_that_wait_in_place_delay_neither_other_events_nor_a_shutdown() -> None:
    store = MemoryStore()
    await forget_nothing(store)
    bus = EventBus(store, concurrency=1, poll_interval=0.02, shutdown_timeout=30.0)
    bus.subscribe("job", Recorder(), id="new")
    bus.subscribe("other", Recorder(), id="other")
    await bus.start()
    events = [await bus.emit("job").stored() for _ in range(3)]
    for event in events:
        await waiting(bus, event)
    async with asyncio.timeout(10):
        await bus.publish("other")
        await bus.shutdown()
    for event in events:
        assert (await store.read_event_log(event.id))[-1].reason == executor.TOLD_TO_STOP
        await until_status(store, event.id, EventStatus.PENDING)


async def test_only_so_many_events_wait_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "HELD_AT_MOST", 2)
    store = MemoryStore()
    await forget_nothing(store)
    async with EventBus(store, poll_interval=0.02) as bus:
        bus.subscribe("job", Recorder(), id="new")
        events = [await bus.emit("job").stored() for _ in range(4)]

        async def two_wait_and_two_went_back_twice() -> bool:
            rounds = [(await trail(store, event)).count("RELEASED") for event in events]
            return sorted(rounds) == [1, 1, 2, 2]

        await until_true(two_wait_and_two_went_back_twice)
        assert bus._worker is not None
        assert len(bus._worker._slots.executor.held) == 2


@pytest.mark.parametrize("mode", ["bus-serial", "global-serial"])
async def test_a_serial_bus_goes_on_behind_an_event_that_waits_in_place(store: EventStore, mode: str) -> None:
    new, old, lease = Recorder(), Recorder(), short_lease(store)
    async with EventBus(store, mode=mode, poll_interval=0.02, lease=lease) as bus:
        bus.subscribe("job", new, id="new")
        bus.subscribe("other", Recorder(), id="other")
        event = await bus.emit("job").stored()
        await waiting(bus, event)
        before = await trail(store, event)
        assert before[-1] == "PICKED"
        assert len(before) <= 10
        async with asyncio.timeout(10):
            for _ in range(3):
                await bus.publish("other")
        await asyncio.sleep(1.2 * lease)  # longer than its lease, and than many rounds would take
        assert await trail(store, event) == before
        bus.subscribe("job", old, id="old")
        await until_status(store, event.id, EventStatus.COMPLETED)
    assert (new.calls, old.calls) == (1, 1)


async def test_a_serial_bus_that_stops_gives_back_what_waits_in_place() -> None:
    store = MemoryStore()
    await forget_nothing(store)
    async with EventBus(store, mode="bus-serial", poll_interval=0.02) as bus:
        bus.subscribe("job", Recorder(), id="new")
        event = await bus.emit("job").stored()
        await waiting(bus, event)
    assert (await store.read_event_log(event.id))[-1].reason == executor.TOLD_TO_STOP
    await until_status(store, event.id, EventStatus.PENDING)


async def test_a_claim_that_waits_without_the_lock_and_is_lost_is_not_settled() -> None:
    store = MemoryStore()
    await forget_nothing(store)
    async with EventBus(store, mode="bus-serial", poll_interval=0.02, lease=0.5) as bus:
        bus.subscribe("job", Recorder(), id="new")
        event = await bus.emit("job").stored()
        await waiting(bus, event)
        await store.reset_event(event.id, reason="an administrator")
        await until(lambda: bus.metrics.snapshot().lease_lost == {"job": 1})
        await waiting(bus, event)  # claimed anew
        assert "RESET" in await trail(store, event)


@pytest.mark.parametrize("kept_for", [0, 1.0, ALIVE_WITHIN - 0.1])
def test_handlers_that_would_be_forgotten_between_two_announcements_are_refused(kept_for: float) -> None:
    with pytest.raises(ConfigurationError, match=r"handlers_kept_for=.*at least 30 s"):
        EventBus("memory://", handlers_kept_for=kept_for)
    EventBus("memory://", handlers_kept_for=ALIVE_WITHIN)
    EventBus("memory://", handlers_kept_for=None)


async def test_the_clock_of_the_store_measures_how_long_ago_a_handler_was_seen() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.register_handlers("default", "web-2:7", [HandlerInfo(handler_id="old", pattern="*")], kept_for=None)
    clock.advance(42.0)
    me = Registry(store, "default", kept_for=None)
    me.announce(list)
    await me.announced()
    await store.register_handlers("default", me._node, [HandlerInfo(handler_id="new", pattern="*")], kept_for=None)
    await me.learn("")
    seen = me.last_seen("old")
    assert seen is not None
    assert (seen.node, round(seen.ago)) == ("web-2:7", 42)
    assert me.last_seen("unknown") is None
