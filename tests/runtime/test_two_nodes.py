"""Handlers of one event on several nodes: side by side or one by one, under one claim on the event."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.places import short_lease
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until_status

from durabus import Context, Event, EventBus, EventStatus, EventStore, Snooze, TransientError, UnrecoverableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.result import HandlerResult
from durabus.model.statuses import Action, EventMode, ResultStatus

WITHIN = 30.0
ONCE = [Action.PUBLISHED, Action.PICKED, Action.COMPLETED]
BOTH_MODES = pytest.mark.parametrize("handler_mode", ["serial", "parallel"])

Handle = Callable[..., Awaitable[Any]]


async def nodes(make_bus: MakeBus, *handlers: Handle, **options: Any) -> list[EventBus]:
    """Start a node for each handler. The handlers are called a, b and so on; the first node starts first."""
    made = []
    for name, handler in zip("abcd", handlers, strict=False):
        bus = make_bus(**options)
        bus.subscribe("order.*", handler, id=name)
        made.append(bus)
    for bus in made:
        await bus.start()
    return made


async def actions(store: EventStore, event_id: str) -> list[Action]:
    return [entry.action for entry in await store.read_event_log(event_id)]


async def results(store: EventStore, event_id: str) -> dict[str, HandlerResult]:
    """The results in the entry of the end."""
    entry = (await store.read_event_log(event_id))[-1]
    return {result.handler_id: result for result in entry.results}


async def publish(bus: EventBus, **options: Any) -> str:
    async with asyncio.timeout(WITHIN):
        return await bus.publish("order.placed", {"n": 1}, **options)


async def test_parallel_handlers_of_two_nodes_run_at_the_same_time(make_bus: MakeBus, store: EventStore) -> None:
    """Each handler ends only after the other one has begun. One PICKED entry shows that the event was not handed on."""
    begun = {"a": asyncio.Event(), "b": asyncio.Event()}

    def handler(mine: str, other: str) -> Handle:
        async def handle(event: Event) -> str:
            begun[mine].set()
            await begun[other].wait()
            return mine

        return handle

    first, _ = await nodes(make_bus, handler("a", "b"), handler("b", "a"), handler_mode="parallel")
    event_id = await publish(first)
    assert await actions(store, event_id) == ONCE
    assert {name: result.value for name, result in (await results(store, event_id)).items()} == {"a": "a", "b": "b"}


async def test_serial_handlers_of_three_nodes_never_run_together(make_bus: MakeBus, store: EventStore) -> None:
    """The lock of the event's handlers keeps those on other nodes apart."""
    inside: Counter[str] = Counter()
    calls: Counter[str] = Counter()

    def handler(name: str) -> Handle:
        async def handle(event: Event) -> None:
            inside[event.event_id] += 1
            assert inside[event.event_id] == 1
            calls[name] += 1
            await asyncio.sleep(0.02)
            inside[event.event_id] -= 1

        return handle

    first, *_ = await nodes(make_bus, *(handler(name) for name in "abc"), handler_mode="serial")
    handles = [first.emit("order.placed", {"n": n}) for n in range(8)]
    async with asyncio.timeout(WITHIN):
        ended = await asyncio.gather(*handles)
    assert [event.status for event in ended] == [EventStatus.COMPLETED] * 8
    assert calls == {"a": 8, "b": 8, "c": 8}
    for handle in handles:
        assert await actions(store, handle.event_id) == ONCE


@BOTH_MODES
async def test_two_hundred_events_of_two_nodes_go_round_no_more(
    make_bus: MakeBus, store: EventStore, handler_mode: str
) -> None:
    """Every event has one PICKED entry and no RELEASED entry, and every handler gets every event once."""
    calls: Counter[tuple[str, int]] = Counter()

    def handler(name: str) -> Handle:
        async def handle(event: Event) -> None:
            calls[name, event.payload["n"]] += 1

        return handle

    first, second = await nodes(make_bus, handler("a"), handler("b"), handler_mode=handler_mode)
    handles = [(first, second)[n % 2].emit("order.placed", {"n": n}) for n in range(200)]
    async with asyncio.timeout(2 * WITHIN):
        await asyncio.gather(*handles)
    assert calls == {(name, n): 1 for name in "ab" for n in range(200)}
    seen = Counter([action for handle in handles for action in await actions(store, handle.event_id)])
    assert seen == dict.fromkeys(ONCE, 200)


@BOTH_MODES
async def test_a_failed_handler_of_another_node_is_tried_again_by_its_own_policy(
    make_bus: MakeBus, store: EventStore, handler_mode: str
) -> None:
    calls: Counter[str] = Counter()

    async def fine(event: Event) -> None:
        calls["a"] += 1

    async def flaky(event: Event) -> str:
        calls["b"] += 1
        if calls["b"] == 1:
            raise TransientError("not yet", retry_after=0.05)
        return "done"

    retry = {"max_retries": 3, "base_delay": 0.05}
    first, _ = await nodes(make_bus, fine, flaky, handler_mode=handler_mode, retry=retry)
    event_id = await publish(first)
    assert calls == {"a": 1, "b": 2}
    entries = await store.read_event_log(event_id)
    failed = [entry for entry in entries if entry.action is Action.FAILED]
    if failed:  # else the node of the handler claimed the event, and called it under its own claim on the event
        assert "not yet" in (failed[0].error or "")
    assert entries[-1].action is Action.COMPLETED
    assert (await results(store, event_id))["b"].value == "done"


async def test_the_error_of_a_handler_on_another_node_names_handler_and_node(
    make_bus: MakeBus, store: EventStore
) -> None:
    """Without an attempt left the event becomes a dead letter."""

    async def fine(event: Event) -> None:
        pass

    async def broken(event: Event) -> None:
        raise ValueError("out of paper")

    first = make_bus(handler_mode="parallel")
    first.subscribe("order.*", fine, id="a")
    await first.start()
    second = make_bus(handler_mode="parallel")
    second.subscribe("order.*", broken, id="b")
    async with taking_offers_only(second):
        event_id = await publish(first)
    event = await store.get_event(event_id)
    assert event is not None
    assert event.status is EventStatus.FAILED
    assert event.errors[-1].startswith("b on ")
    assert "ValueError: out of paper" in event.errors[-1]
    result = (await results(store, event_id))["b"]
    assert result.value["retry_in"] is None
    assert "out of paper" in result.value["traceback"]


@asynccontextmanager
async def taking_offers_only(bus: EventBus) -> AsyncIterator[None]:
    """Start a node, and keep it from claiming events: so the other node coordinates them."""
    await bus.start()
    assert bus._worker is not None
    with bus._worker._poller.resting():
        yield


async def test_a_handler_of_another_node_that_outlives_its_lease_is_called_once(
    make_bus: MakeBus, store: EventStore
) -> None:
    """Its node renews the claim on the handler. Otherwise the third node, which has it too, would take it over."""
    lease, calls = short_lease(store), Counter[str]()

    async def fine(event: Event) -> None:
        calls["a"] += 1

    async def long(event: Event) -> str:
        calls["b"] += 1
        await asyncio.sleep(2.5 * lease)
        return "done"

    first, second, third = (make_bus(handler_mode="parallel", lease=lease) for _ in range(3))
    first.subscribe("order.*", fine, id="a")
    await first.start()
    second.subscribe("order.*", long, id="b")
    third.subscribe("order.*", long, id="b")
    async with taking_offers_only(second), taking_offers_only(third):
        event_id = await publish(first)
    assert calls == {"a": 1, "b": 1}
    result = (await results(store, event_id))["b"]
    assert (result.value, result.attempts, result.fence) == ("done", 1, 1)
    assert await actions(store, event_id) == ONCE


@BOTH_MODES
async def test_an_unrecoverable_error_on_one_node_leaves_the_other_its_one_call(
    make_bus: MakeBus, store: EventStore, handler_mode: str
) -> None:
    calls: Counter[str] = Counter()

    def fatal(name: str) -> Handle:
        async def handle(event: Event) -> None:
            calls[name] += 1
            if event.payload["fatal"] == name:
                raise UnrecoverableError("no such customer")

        return handle

    first, second = await nodes(make_bus, fatal("a"), fatal("b"), handler_mode=handler_mode)
    for name in "ab":
        handles = [bus.emit("order.placed", {"fatal": name}) for bus in (first, second)]
        async with asyncio.timeout(WITHIN):
            ended = [await handle.completed() for handle in handles]
        assert [event.status for event in ended] == [EventStatus.COMPLETED_WITH_ERRORS] * 2
    assert calls == {"a": 4, "b": 4}


@BOTH_MODES
async def test_a_sleep_on_one_node_does_not_delay_the_handler_of_another(
    make_bus: MakeBus, store: EventStore, handler_mode: str
) -> None:
    """The event goes back to the queue only when no handler runs, and comes back when the first sleeper is due."""
    ran = asyncio.Event()
    steps: Counter[str] = Counter()

    def count(name: str) -> str:
        steps[name] += 1
        return name

    def sleeper(name: str, seconds: float) -> Handle:
        async def handle(event: Event, ctx: Context) -> str:
            value = await ctx.step("once", count, name)
            await ctx.sleep(seconds)
            ran.set()
            return str(value)

        return handle

    async def quick(event: Event) -> str:
        ran.set()
        return "c"

    first, *_ = await nodes(make_bus, sleeper("a", 2.0), sleeper("b", 1.6), quick, handler_mode=handler_mode)
    handle = first.emit("order.placed")
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(WITHIN):
        await ran.wait()
        assert asyncio.get_running_loop().time() - began < 1.5, "the handler of the third node waited for the sleep"
        event = await handle.completed()
    assert event.status is EventStatus.COMPLETED
    assert steps == {"a": 1, "b": 1}
    found = await results(store, event.event_id)
    assert {name: found[name].value for name in "abc"} == {"a": "a", "b": "b", "c": "c"}
    assert (await actions(store, event.event_id)).count(Action.RELEASED) <= 4


async def test_a_snooze_on_another_node_costs_no_attempt(make_bus: MakeBus, store: EventStore) -> None:
    calls: Counter[str] = Counter()

    async def fine(event: Event) -> None:
        calls["a"] += 1

    async def snoozes(event: Event) -> None:
        calls["b"] += 1
        if calls["b"] == 1:
            raise Snooze(0.1)

    first, _ = await nodes(make_bus, fine, snoozes, handler_mode="parallel")
    event_id = await publish(first)
    event = await store.get_event(event_id)
    assert event is not None
    assert (event.status, event.attempts) == (EventStatus.COMPLETED, 1)
    assert calls == {"a": 1, "b": 2}


@BOTH_MODES
async def test_the_first_value_is_enough_on_whichever_node_it_is_returned(
    make_bus: MakeBus, store: EventStore, handler_mode: str
) -> None:
    """With ``completion="first"`` the handlers of all nodes compete. Those that lose are stopped."""
    stopped = asyncio.Event()
    options = {"handler_mode": handler_mode, "completion": "first", "lease": 3.0}

    async def without_a_value(event: Event) -> None:
        if event.payload["slow"] == "a" and handler_mode == "parallel":
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

    async def answers(event: Event) -> str:
        return "mine"

    first, _ = await nodes(make_bus, without_a_value, answers, **options)
    async with asyncio.timeout(WITHIN):
        event = await first.emit("order.placed", {"slow": "a"}).completed()
        if handler_mode == "parallel":
            await stopped.wait()
    assert event.status is EventStatus.COMPLETED
    found = await results(store, event.event_id)
    assert (found["b"].status, found["b"].value) == (ResultStatus.SUCCEEDED, "mine")


async def test_a_handler_on_another_node_is_stopped_when_its_value_is_not_needed(make_bus: MakeBus) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def answers(event: Event) -> str:
        await begun.wait()
        return "mine"

    async def endless(event: Event) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    first = make_bus(handler_mode="parallel", completion="first", lease=3.0)
    first.subscribe("order.*", answers, id="a")
    await first.start()
    second = make_bus(handler_mode="parallel", completion="first", lease=3.0)
    second.subscribe("order.*", endless, id="b")
    async with taking_offers_only(second):
        await publish(first)
        async with asyncio.timeout(WITHIN):
            await stopped.wait()


async def test_a_node_that_has_just_started_takes_offers_without_a_hint(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins to look for offers before it knows the other node, so it must not rest long then."""
    monkeypatch.setattr("durabus.worker.offers.LOOK_AT_NODES", 3600.0)
    calls: Counter[str] = Counter()

    def handler(name: str) -> Handle:
        async def handle(event: Event) -> None:
            calls[name] += 1

        return handle

    first, second = make_bus(handler_mode="parallel"), make_bus(handler_mode="parallel")
    first.subscribe("order.*", handler("a"), id="a")
    await first.start()
    second.subscribe("order.*", handler("b"), id="b")
    async with taking_offers_only(second):
        assert second._worker is not None
        second._worker._poller.heard = None
        await publish(first)
    assert calls == {"a": 1, "b": 1}


async def test_the_timeout_of_an_event_stops_its_handlers_on_all_nodes(make_bus: MakeBus, store: EventStore) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def fine(event: Event) -> None:
        await begun.wait()

    async def endless(event: Event) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    options = {"handler_mode": "parallel", "lease": 3.0}
    first = make_bus(event_timeout=1.0, **options)
    first.subscribe("order.*", fine, id="a")
    await first.start()
    second = make_bus(**options)
    second.subscribe("order.*", endless, id="b")
    async with taking_offers_only(second):
        event_id = await publish(first, max_attempts=1)
        async with asyncio.timeout(WITHIN):
            await stopped.wait()
    event = await store.get_event(event_id)
    assert event is not None
    assert event.status is EventStatus.FAILED
    assert "b: EventTimeout: stopped while it ran" in event.errors[-1]


@pytest.mark.parametrize("mode", ["bus-serial", "global-serial"])
async def test_events_of_a_serial_bus_run_one_at_a_time_on_all_nodes(
    make_bus: MakeBus, store: EventStore, mode: str
) -> None:
    """The node that coordinates an event holds the lock until the handlers of all nodes have ended."""
    inside: set[str] = set()
    seen: Counter[str] = Counter()

    def handler(name: str) -> Handle:
        async def handle(event: Event) -> None:
            inside.add(event.event_id)
            assert len(inside) == 1
            seen[name] += 1
            await asyncio.sleep(0.01)
            if seen["a"] == seen["b"]:
                inside.clear()

        return handle

    first, _ = await nodes(make_bus, handler("a"), handler("b"), mode=mode, handler_mode="serial")
    handles = [first.emit("order.placed", {"n": n}) for n in range(5)]
    async with asyncio.timeout(2 * WITHIN):
        ended = await asyncio.gather(*handles)
    assert [event.status for event in ended] == [EventStatus.COMPLETED] * 5
    assert seen == {"a": 5, "b": 5}


async def test_plain_functions_run_for_events_of_other_nodes(make_bus: MakeBus, store: EventStore) -> None:
    def plain(event: Event) -> str:
        return "in a thread"

    first = make_bus(handler_mode="parallel")
    second = make_bus(handler_mode="parallel")
    first.subscribe("order.*", plain, id="a")
    second.subscribe("order.*", plain, id="b")
    await first.start()
    await second.start()
    event_id = await publish(first)
    assert {result.value for result in (await results(store, event_id)).values()} == {"in a thread"}


async def test_a_cancelled_event_stops_its_handlers_on_all_nodes(make_bus: MakeBus, store: EventStore) -> None:
    """The claim on the handler ends with the event, and the heartbeat of its node notices."""
    stopped: Counter[str] = Counter()
    begun = asyncio.Barrier(3)

    def endless(name: str) -> Handle:
        async def handle(event: Event) -> None:
            await begun.wait()
            try:
                await asyncio.Event().wait()
            finally:
                stopped[name] += 1

        return handle

    first, _ = await nodes(make_bus, endless("a"), endless("b"), handler_mode="parallel", lease=3.0)
    handle = first.emit("order.placed")
    async with asyncio.timeout(WITHIN):
        await begun.wait()
        await store.cancel_event(handle.event_id, reason="not wanted")
        while stopped != {"a": 1, "b": 1}:  # noqa: ASYNC110  (the heartbeat has no signal for a test)
            await asyncio.sleep(0.02)
    event = await store.get_event(handle.event_id)
    assert event is not None
    assert event.status is EventStatus.CANCELLED


async def test_a_node_that_stops_leaves_the_handlers_of_others_at_work(make_bus: MakeBus, store: EventStore) -> None:
    """The event goes back at once. The next node that claims it waits for the handler that runs, and runs it not."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls: Counter[str] = Counter()

    async def fine(event: Event) -> None:
        calls["a"] += 1

    async def slow(event: Event) -> str:
        calls["b"] += 1
        begun.set()
        await go_on.wait()
        return "done"

    first = make_bus(handler_mode="parallel")
    first.subscribe("order.*", fine, id="a")
    await first.start()
    second = make_bus(handler_mode="parallel")
    second.subscribe("order.*", slow, id="b")
    async with taking_offers_only(second):
        event_id = await first.emit("order.placed").stored()
        async with asyncio.timeout(WITHIN):
            await begun.wait()
            await first.shutdown(5.0)
    third = make_bus(handler_mode="parallel")
    third.subscribe("order.*", fine, id="a")
    await third.start()
    await asyncio.sleep(0.1)
    go_on.set()
    await until_status(store, event_id.id, EventStatus.COMPLETED)
    assert calls == {"a": 1, "b": 1}
    assert (await results(store, event_id.event_id))["b"].value == "done"


async def test_a_node_that_stops_gives_its_offered_handlers_back(make_bus: MakeBus, store: EventStore) -> None:
    """Another node with the same handler claims it at once, without an attempt lost."""
    begun = asyncio.Event()
    calls: Counter[str] = Counter()

    async def fine(event: Event) -> None:
        pass

    async def endless(event: Event) -> None:
        calls["second"] += 1
        begun.set()
        await asyncio.Event().wait()

    async def quick(event: Event) -> None:
        calls["third"] += 1

    first = make_bus(handler_mode="parallel")
    first.subscribe("order.*", fine, id="a")
    await first.start()
    second = make_bus(handler_mode="parallel")
    second.subscribe("order.*", endless, id="b")
    async with taking_offers_only(second):
        stored = await first.emit("order.placed").stored()
        async with asyncio.timeout(WITHIN):
            await begun.wait()
    third = make_bus(handler_mode="parallel", serve=True)
    third.subscribe("order.*", quick, id="b")
    await third.start()
    await second.shutdown(0.1)
    await until_status(store, stored.id, EventStatus.COMPLETED)
    assert calls == {"second": 1, "third": 1}
    assert (await results(store, stored.event_id))["b"].attempts == 1


async def test_the_next_event_of_a_serial_bus_waits_for_a_handler_whose_event_was_lost(
    make_bus: MakeBus, store: EventStore
) -> None:
    """The claim on a handler outlives the claim on its event, and keeps the lock of the bus."""
    inside: list[str] = []
    called: Counter[str] = Counter()
    remote, go_on = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        assert not inside, "handlers of a serial bus overlap"
        inside.append(event.event_id)
        called[event.event_id] += 1
        if called.total() == 2:  # the node that claimed the event runs its own handler first
            remote.set()
            await go_on.wait()
        inside.clear()

    first, _ = await nodes(make_bus, handle, handle, mode="bus-serial", lease=3.0)
    async with asyncio.timeout(WITHIN):
        lost = first.emit("order.placed", {"n": 1})
        await remote.wait()
        await store.reset_event(lost.event_id, reason="its node is lost")
        behind = first.emit("order.placed", {"n": 2})
        await behind.stored()
        mode, token = EventMode.BUS_SERIAL, new_token()
        request = ClaimRequest(bus=first.name, worker_id="another node", token=token, limit=2, mode=mode)
        assert await store.claim_next_events(request) == []
        for handle_ in (lost, behind):
            event = await store.get_event(handle_.event_id)
            assert event is not None
            assert event.status is EventStatus.PENDING
        go_on.set()
        for handle_ in (lost, behind):
            await until_status(store, handle_.event_id, EventStatus.COMPLETED)
    assert called == {lost.event_id: 2, behind.event_id: 2}
