"""``ctx.wait_for``: a handler waits for another event, and holds nothing meanwhile."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus

from durabus import (
    ConfigurationError,
    Context,
    DLQInspector,
    Event,
    EventBus,
    EventManager,
    EventQueue,
    EventStatus,
    EventStore,
    InvalidEventError,
    ResultStatus,
    SyncContext,
    TransientError,
    open_store,
)

PATIENT = {"max_retries": 5, "base_delay": 0.01}
SOON = 20.0


async def released(store: EventStore, waiting: Event, times: int = 1) -> Event:
    """Wait until the event went back to the queue so often."""
    for _ in range(500):
        trail = [entry.action.value for entry in await store.read_event_log(waiting.event_id)]
        if trail.count("RELEASED") >= times:
            event = await store.get_event(waiting.event_id)
            assert event is not None
            return event
        await asyncio.sleep(0.02)
    raise AssertionError(trail)


async def test_a_store_without_waits_ends_the_event_at_once() -> None:
    """No further attempt could wait there."""
    async with EventBus("sharded://memory://|memory://", retry=PATIENT) as bus:

        @bus.on("order.placed", id="order")
        async def order(event: Event, ctx: Context) -> None:
            await ctx.wait_for("payment.settled")

        ended = await bus.emit("order.placed")
        assert (ended.status, ended.attempts) == (EventStatus.COMPLETED_WITH_ERRORS, 1)
        assert "ctx.wait_for is not possible on sharded://" in ended.errors[0]


async def test_a_handler_goes_on_when_the_event_comes(make_bus: MakeBus, store: EventStore) -> None:
    bus, seen = make_bus(), list[Event | None]()
    calls: list[int] = []

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        calls.append(await ctx.step("reserve", lambda: len(calls)))
        paid = await ctx.wait_for("payment.settled", where={"order_id": event.payload["id"]}, timeout=86_400)
        seen.append(paid)

    await bus.start()
    handle = bus.emit("order.placed", {"id": 7})
    waiting = await released(store, await handle.stored())
    assert (waiting.status, waiting.attempts, waiting.worker_id) == (EventStatus.PENDING, 0, None)
    (kept, result) = [one for one in await store.list_results(waiting.id) if ">" in one.handler_id]
    assert (kept.status, result.status) == (ResultStatus.KEPT, ResultStatus.WAITING)
    bus.emit("payment.settled", {"order_id": 8})
    paid = await bus.emit("payment.settled", {"order_id": 7, "sum": 40}).stored()
    await asyncio.wait_for(handle.completed(), SOON)
    (found,) = seen
    assert isinstance(found, Event)
    assert (found.event_id, found.payload, found.type) == (paid.event_id, {"order_id": 7, "sum": 40}, "payment.settled")
    assert calls == [0, 0]
    entry = (await store.read_event_log(waiting.event_id))[-1]
    assert {one.handler_id: one.status for one in entry.results}["order > wait_for"] is ResultStatus.KEPT


async def test_an_event_that_came_before_the_call_is_found(make_bus: MakeBus) -> None:
    bus, seen = make_bus(), list[Any]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        if not await ctx.step("bill", _bill, bus):
            raise AssertionError
        seen.append(await ctx.wait_for("payment.settled", where={"order_id": 7}))

    await asyncio.wait_for(bus.publish("order.placed", {"id": 7}), SOON)
    assert [one.payload["order_id"] for one in seen] == [7]


async def test_an_event_that_is_not_due_is_found_too(make_bus: MakeBus) -> None:
    bus, seen = make_bus(), list[Event | None]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("bill", bill)
        seen.append(await ctx.wait_for("payment.settled", timeout=3600))

    async def bill() -> None:
        await bus.emit("payment.settled", parent_id=None, delay=3600).stored()

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert [one and one.type for one in seen] == ["payment.settled"]


async def _bill(bus: EventBus) -> bool:
    await bus.emit("payment.settled", {"order_id": 7}, parent_id=None).stored()
    return True


async def test_handlers_of_two_nodes_both_find_events_that_came_before_the_call(make_bus: MakeBus) -> None:
    """One of the two nodes coordinates the event. The handler of the other one runs under a claim of its own."""
    one, two = make_bus(handler_mode="parallel"), make_bus(handler_mode="parallel")
    seen: list[tuple[str, Event | None]] = []

    def handler(name: str, bus: EventBus) -> Callable[..., Any]:
        async def handle(event: Event, ctx: Context) -> None:
            await ctx.step("bill", _bill, bus)
            seen.append((name, await ctx.wait_for("payment.settled", where={"order_id": 7}, timeout=86_400)))

        return handle

    for name, bus in (("a", one), ("b", two)):
        bus.subscribe("order.placed", handler(name, bus), id=name)
        await bus.start()
    await asyncio.wait_for(one.publish("order.placed"), SOON)
    assert sorted(name for name, _ in seen) == ["a", "b"]
    assert len({met.event_id for _, met in seen if met is not None}) == 1


async def test_none_comes_back_after_the_timeout_and_stays(make_bus: MakeBus, store: EventStore) -> None:
    bus, seen = make_bus(retry=PATIENT), []

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        seen.append(await ctx.wait_for("payment.settled", timeout=0.2))
        if len(seen) == 1:
            await bus.emit("payment.settled", parent_id=None).stored()
        if len(seen) < 3:
            raise TransientError("once more")

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert seen == [None, None, None]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_whose_wait_ended_by_its_timeout_succeeds(
    make_bus: MakeBus, store: EventStore, kind: str
) -> None:
    bus = make_bus()

    async def order(event: Event, ctx: Context) -> str:
        return "late" if await ctx.wait_for("payment.settled", timeout=0.05) is None else "paid"

    def plain_order(event: Event, ctx: SyncContext) -> str:
        return "late" if ctx.wait_for("payment.settled", timeout=0.05) is None else "paid"

    bus.subscribe("order.placed", order if kind == "async" else plain_order, id="order")
    await bus.start()
    handle = bus.emit("order.placed")
    assert await asyncio.wait_for(handle.result(), SOON) == "late"
    ended = await handle.completed()
    assert (ended.status, ended.errors) == (EventStatus.COMPLETED, ())


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_waits_in_another_order_find_their_own_events(make_bus: MakeBus) -> None:
    bus, found = make_bus(retry=PATIENT), []

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("answer", _answer, bus)
        for kind in "ab" if event.attempts == 1 else "ba":
            answer = await ctx.wait_for(f"answer.{kind}")
            assert answer is not None
            found.append(answer.type)
        for n in (1, 2) if event.attempts == 1 else (2, 1):
            answer = await ctx.wait_for("number", where={"n": n})
            assert answer is not None
            found.append(answer.payload["n"])
        if event.attempts == 1:
            raise TransientError("again")

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert found[-4:] == ["answer.b", "answer.a", 2, 1]


async def _answer(bus: EventBus) -> None:
    for kind, payload in (("answer.a", 0), ("answer.b", 0), ("number", {"n": 2}), ("number", {"n": 1})):
        await bus.emit(kind, payload, parent_id=None).stored()


async def test_a_retry_and_a_requeue_return_the_same_event(make_bus: MakeBus, store: EventStore) -> None:
    bus, seen, broken = make_bus(retry={"max_retries": 1, "base_delay": 0.01}), [], [True]

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        first = await ctx.wait_for("payment.settled")
        second = await ctx.wait_for("payment.settled", where={"n": 2})
        seen.append((first and first.event_id, second and second.event_id))
        if broken[0]:
            raise TransientError("the warehouse is closed")

    await bus.start()
    handle = bus.emit("order.placed")
    event = await released(store, await handle.stored())
    first = (await bus.emit("payment.settled", {"n": 1}).stored()).event_id
    await released(store, event, 2)
    second = (await bus.emit("payment.settled", {"n": 2}).stored()).event_id
    for _ in range(1000):
        ended = await store.get_event(event.event_id)
        assert ended is not None
        if ended.status is EventStatus.FAILED:
            break
        await asyncio.sleep(0.02)
    await store.remove_event(first)
    broken[0] = False
    await DLQInspector(store).retry(event.event_id)
    for _ in range(1000):
        ended = await store.get_event(event.event_id)
        assert ended is not None
        if ended.status is EventStatus.COMPLETED:
            break
        await asyncio.sleep(0.02)
    assert ended is not None
    assert ended.status is EventStatus.COMPLETED
    assert seen == [(first, second)] * 3


async def test_two_handlers_wait_at_once(make_bus: MakeBus, store: EventStore) -> None:
    bus, seen = make_bus(handler_mode="parallel"), []

    def waiter(kind: str) -> Any:
        async def wait(event: Event, ctx: Context) -> None:
            found = await ctx.wait_for(kind, timeout=3600)
            seen.append(found and found.type)

        return wait

    bus.on("order.placed", id="money")(waiter("payment.settled"))
    bus.on("order.placed", id="goods")(waiter("goods.packed"))
    await bus.start()
    handle = bus.emit("order.placed")
    event = await released(store, await handle.stored())
    bus.emit("goods.packed")
    await released(store, event, 2)
    assert seen == ["goods.packed"]
    bus.emit("payment.settled")
    await asyncio.wait_for(handle.completed(), SOON)
    assert seen == ["goods.packed", "payment.settled"]


async def test_a_plain_function_waits_too(make_bus: MakeBus, store: EventStore) -> None:
    bus, seen = make_bus(), list[Any]()

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        seen.append(ctx.wait_for("payment.settled", where={"order_id": 7}, timeout=3600))

    await bus.start()
    handle = bus.emit("order.placed")
    await released(store, await handle.stored())
    bus.emit("payment.settled", {"order_id": 7})
    await asyncio.wait_for(handle.completed(), SOON)
    assert [one.payload for one in seen] == [{"order_id": 7}]


async def test_an_event_manager_has_it_too(store: EventStore) -> None:
    queue, seen = EventQueue(store), []
    manager = EventManager(queue)

    async def order(event: Event, ctx: Context) -> None:
        found = await ctx.wait_for("payment.settled", timeout=3600)
        seen.append(found and found.payload)

    manager.register("order.placed", "order", order)
    await queue.publish("order.placed")
    await manager.process_next()
    assert seen == []
    await queue.publish("payment.settled", {"n": 1})
    for _ in range(500):
        await manager.process_next()
        if seen:
            break
        await asyncio.sleep(0.02)
    assert seen == [{"n": 1}]


async def test_another_process_goes_on_after_the_wait(url: str, store: EventStore) -> None:
    seen, ended = [], asyncio.Event()

    async def order(event: Event, ctx: Context) -> None:
        found = await ctx.wait_for("payment.settled", timeout=3600)
        seen.append(found and found.payload)
        ended.set()

    first = EventBus(store, poll_interval=0.05)
    first.on("order.placed", id="order")(order)
    async with first:
        event = await released(store, await first.emit("order.placed").stored())
    other = await open_store(url) if not url.startswith("memory") else store
    second = EventBus(other, poll_interval=0.05)
    second.on("order.placed", id="order")(order)
    async with second:
        await second.emit("payment.settled", {"n": 1}).stored()
        await asyncio.wait_for(ended.wait(), SOON)
    assert seen == [{"n": 1}]
    assert [entry.action.value for entry in await store.read_event_log(event.event_id)].count("RELEASED") == 1
    if other is not store:
        await other.close()


async def test_a_changed_condition_is_reported(
    make_bus: MakeBus, store: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    bus, wanted, seen = make_bus(), [1], list[Any]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.wait_for("tick"))
            wait = group.create_task(ctx.wait_for("payment.settled", where={"n": wanted[0]}))
        seen.append(wait.result())

    await bus.start()
    handle = bus.emit("order.placed")
    event = await released(store, await handle.stored())
    wanted[0] = 2
    with caplog.at_level(logging.WARNING, "durabus.worker"):
        bus.emit("tick")
        await released(store, event, 2)
        bus.emit("payment.settled", {"n": 1})
        await asyncio.wait_for(handle.completed(), SOON)
    assert [one.payload for one in seen] == [{"n": 1}]
    assert any("began with another type or other fields" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ({"event_type": "payment.*"}, InvalidEventError, "a star is allowed in patterns"),
        ({"event_type": ""}, InvalidEventError, "is empty"),
        ({"where": [("a", 1)]}, ConfigurationError, "must be a mapping"),
        ({"where": {str(n): n for n in range(9)}}, ConfigurationError, "the limit is 8"),
        ({"where": {"a": [1]}}, ConfigurationError, "not list"),
        ({"where": {"a": 2**53}}, ConfigurationError, "must be below 2\\*\\*53"),
        ({"where": {"a": float("nan")}}, ConfigurationError, "must be below 2\\*\\*53"),
        ({"where": {"a": "x" * 2000}}, ConfigurationError, "the limit is 512"),
        ({"where": {"a": "\0"}}, ConfigurationError, "NUL"),
        ({"where": {"a": "\ud800"}}, ConfigurationError, "surrogates"),
        ({"where": {1: 1}}, InvalidEventError, "must be a string"),
        ({"timeout": -1}, ConfigurationError, "0 or more seconds"),
    ],
)
async def test_bad_input_is_refused(make_bus: MakeBus, call: dict[str, Any], error: type[Exception], text: str) -> None:
    bus, raised = make_bus(), []

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        with pytest.raises(error, match=text) as caught:
            await ctx.wait_for(**{"event_type": "payment.settled", **call})
        raised.append(caught.value)

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert len(raised) == 1
