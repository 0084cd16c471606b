"""Durable steps: a value that the store keeps is not computed again, whatever happens to the attempt."""

import asyncio
import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.places import short_lease
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until_status
from tests.worker.support import until

from durabus import (
    ConfigurationError,
    Context,
    DLQInspector,
    Event,
    EventBus,
    EventManager,
    EventQuery,
    EventQueue,
    EventStatus,
    EventStore,
    LeaseLost,
    ResultStatus,
    RetryPolicy,
    Snooze,
    SyncContext,
    TransientError,
    open_store,
)
from durabus.model.statuses import TERMINAL

PATIENT = {"max_retries": 5, "base_delay": 0.01}
MEMORY = pytest.mark.parametrize("url", ["memory"], indirect=True)
"""For what does not depend on the store."""


class Till:
    """Counts what was charged."""

    def __init__(self) -> None:
        self.charged: list[Any] = []

    async def charge(self, amount: Any) -> dict[str, Any]:
        self.charged.append(amount)
        return {"receipt": len(self.charged), "amount": amount}


async def test_a_retry_returns_the_kept_value_and_does_not_run_the_step_again(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, till, seen = make_bus(retry=PATIENT), Till(), []

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        seen.append(await ctx.step("charge", till.charge, 40))
        if len(seen) < 3:
            raise TransientError("not yet")

    event_id = await bus.publish("order.placed")
    assert till.charged == [40]
    assert seen == [{"receipt": 1, "amount": 40}] * 3
    entry = (await store.read_event_log(event_id))[-1]
    kept = {result.handler_id: result for result in entry.results}
    assert entry.status is EventStatus.COMPLETED
    assert kept["order > charge"].status is ResultStatus.KEPT
    assert kept["order > charge"].value["value"] == {"receipt": 1, "amount": 40}


async def test_another_process_goes_on_with_the_kept_steps_of_one_that_died(url: str, store: EventStore) -> None:
    """The first worker loses its claim as after kill -9: nothing settles the event, and its lease ends."""
    till, begun, stuck = Till(), asyncio.Event(), asyncio.Event()
    dead = EventBus(store, lease=short_lease(store), poll_interval=0.05)

    @dead.on("order.placed", id="order")
    async def hang(event: Event, ctx: Context) -> None:
        await ctx.step("charge", till.charge, 1)
        begun.set()
        await stuck.wait()

    await dead.start()
    dead.emit("order.placed")
    await asyncio.wait_for(begun.wait(), 20)
    assert dead._worker is not None
    dead._worker._heartbeat.end()
    for task in (*dead._worker._serving, *dead._worker._slots.tasks):
        task.cancel()
    other = await open_store(url) if not url.startswith("memory") else store
    living, ended = EventBus(other, lease=short_lease(store), poll_interval=0.05), asyncio.Event()

    @living.on("order.placed", id="order")
    async def go_on(event: Event, ctx: Context) -> None:
        await ctx.step("charge", till.charge, 1)
        await ctx.step("ship", till.charge, 2)
        ended.set()

    async with living:
        await asyncio.wait_for(ended.wait(), 30)
    assert till.charged == [1, 2]
    if other is not store:
        await other.close()
    await dead.shutdown(0.1)


async def test_a_requeued_dead_letter_keeps_its_steps(make_bus: MakeBus, store: EventStore) -> None:
    bus, till, broken = make_bus(), Till(), [True]

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("charge", till.charge, 40)
        if broken[0]:
            raise TransientError("the warehouse is closed")

    event_id = await bus.publish("order.placed")
    broken[0] = False
    await DLQInspector(store).retry(event_id)
    for _ in range(500):
        event = await store.get_event(event_id)
        if event is not None and event.status is EventStatus.COMPLETED:
            break
        await asyncio.sleep(0.02)
    assert event is not None
    assert event.status is EventStatus.COMPLETED
    assert till.charged == [40]


async def test_steps_of_one_name_are_numbered_and_steps_may_run_side_by_side(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, till, values = make_bus(retry=PATIENT), Till(), []

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        values.append(await asyncio.gather(*(ctx.step("charge", till.charge, n) for n in (1, 2, 3))))
        if event.attempts == 1:
            raise TransientError("again")

    event_id = await bus.publish("order.placed")
    assert sorted(till.charged) == [1, 2, 3]
    assert values[0] == values[1]
    kept = [result.handler_id for result in (await store.read_event_log(event_id))[-1].results]
    assert {"order > charge", "order > charge#2", "order > charge#3"} <= set(kept)


async def test_plain_handlers_have_the_same_verbs(make_bus: MakeBus, store: EventStore) -> None:
    bus, till = make_bus(retry=PATIENT), Till()
    calls: list[object] = []

    def plain() -> int:
        calls.append("plain")
        return len(calls)

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        first = ctx.step("plain", plain)
        second = ctx.step("async", till.charge, 5)
        ctx.sleep(0.05)
        calls.append((first, second["amount"]))

    event_id = await bus.publish("order.placed")
    assert calls == ["plain", (1, 5)]
    assert till.charged == [5]
    assert (await store.get_event(event_id)).attempts == 1  # type: ignore[union-attr]


async def test_a_sleep_gives_slot_and_claim_back_and_costs_no_attempt(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus(concurrency=1)
    order_of: list[str] = []

    @bus.on("slow", id="slow")
    async def slow(event: Event, ctx: Context) -> None:
        await ctx.step("begin", order_of.append, "begin")
        await ctx.sleep(0.4)
        order_of.append("end")

    @bus.on("quick", id="quick")
    async def quick(event: Event) -> None:
        order_of.append("quick")

    await bus.start()
    sleeper = bus.emit("slow")
    await sleeper.stored()
    await bus.publish("quick")
    event = await sleeper
    assert order_of == ["begin", "quick", "end"]
    assert (event.status, event.attempts) == (EventStatus.COMPLETED, 1)
    trail = await store.read_event_log(event.event_id)
    assert [entry.action.value for entry in trail] == ["PUBLISHED", "PICKED", "RELEASED", "PICKED", "COMPLETED"]
    assert trail[2].reason == "a handler sleeps"


async def test_sleep_until_takes_an_instant_and_does_not_sleep_in_the_past(make_bus: MakeBus) -> None:
    bus, woken = make_bus(), []

    @bus.on("alarm", id="alarm")
    async def alarm(event: Event, ctx: Context) -> None:
        now = datetime.fromtimestamp(event.created_ts, UTC)
        await ctx.sleep_until(now - timedelta(days=1))
        await ctx.sleep_until(now + timedelta(seconds=0.3))
        woken.append(event.attempts)
        with pytest.raises(ConfigurationError, match="time zone"):
            await ctx.sleep_until(datetime.fromtimestamp(event.created_ts))  # noqa: DTZ006

    await bus.publish("alarm")
    assert woken == [1]


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_snooze_calls_the_handler_again_without_an_attempt(
    make_bus: MakeBus, store: EventStore, how: str
) -> None:
    bus, calls = make_bus(), []

    @bus.on("report", id="report")
    async def report(event: Event) -> object:
        calls.append(event.attempts)
        if len(calls) < 3:
            if how == "raise":
                raise Snooze(0.05)
            return Snooze(timedelta(seconds=0.05))
        return None

    event_id = await bus.publish("report")
    assert calls == [1, 1, 1]
    assert (await store.get_event(event_id)).errors == ()  # type: ignore[union-attr]


async def test_snooze_until_an_instant_goes_by_the_clock_of_the_store(make_bus: MakeBus, store: EventStore) -> None:
    """An instant in the past makes the event due at once."""
    bus, picked = make_bus(), []

    @bus.on("report", id="report")
    async def report(event: Event) -> object:
        picked.append(event.picked_ts or 0.0)
        if len(picked) == 1:
            raise Snooze(datetime.fromtimestamp(event.created_ts + 0.4, UTC))
        return Snooze(datetime.fromtimestamp(event.created_ts - 3600, UTC)) if len(picked) == 2 else None

    event_id = await bus.publish("report")
    ended = await store.get_event(event_id)
    assert ended is not None
    assert (ended.status, ended.attempts, ended.errors) == (EventStatus.COMPLETED, 1, ())
    assert ended.created_ts + 0.4 - 0.001 <= picked[1] < picked[2]


async def test_a_step_is_tried_again_by_its_own_policy_and_timeout(make_bus: MakeBus) -> None:
    bus, tries, values = make_bus(), [], []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no")
        if len(tries) == 2:
            await asyncio.sleep(60)
        return 7

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        values.append(await ctx.step("flaky", flaky, retry={"max_retries": 2, "base_delay": 0.01}, timeout=0.1))

    await bus.publish("job")
    assert (values, len(tries)) == ([7], 3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "value of step 'bad'.value: object is not JSON-serialisable"),
        ("x" * 300_000, "the limit is 262,144"),
        (float("nan"), "nan is not a JSON number"),
    ],
)
async def test_a_value_that_cannot_be_kept_ends_the_event_with_a_clear_error(
    make_bus: MakeBus, store: EventStore, value: Any, text: str
) -> None:
    bus = make_bus(retry=PATIENT)

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        await ctx.step("bad", lambda: value)

    event_id = await bus.publish("job")
    event = await store.get_event(event_id)
    assert event is not None
    assert (event.status, event.attempts) == (EventStatus.COMPLETED_WITH_ERRORS, 1)
    assert text in (event.last_error or "")


async def test_a_thousand_steps_are_kept_and_one_more_is_refused(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    most: list[int] = []

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        await asyncio.gather(*(ctx.step("n", most.append, n) for n in range(1000)))
        await ctx.step("one more", most.append, 1000)

    event_id = await bus.publish("job")
    event = await store.get_event(event_id)
    assert event is not None
    assert "has more than 1,000 steps" in (event.last_error or "")
    assert len(most) == 1000
    results = await store.list_results(event_id)
    assert sum(result.status is ResultStatus.KEPT for result in results) == 1000


@MEMORY
async def test_steps_of_one_name_that_run_in_another_order_are_refused(make_bus: MakeBus) -> None:
    """Otherwise one of them would run twice, and the other one not at all."""
    bus, till = make_bus(retry=PATIENT), Till()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        if event.attempts == 1:
            await ctx.step("charge", till.charge, "b")
            raise TransientError("again")
        for item in "ab":
            await ctx.step("charge", till.charge, item)

    await bus.start()
    ended = await bus.emit("order.placed")
    assert till.charged == ["b"]
    assert ended.status is EventStatus.COMPLETED_WITH_ERRORS
    assert "run in another order than before. Give each of them a name of its own" in ended.errors[-1]


@MEMORY
async def test_steps_with_arguments_that_are_not_json_keep_their_values(make_bus: MakeBus) -> None:
    bus, till, kept = make_bus(retry=PATIENT), Till(), []

    def charge(event: Event, client: object, item: str) -> str:
        till.charged.append(item)
        return f"receipt of {item}"

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        items = "ab" if event.attempts == 1 else "ba"
        kept.extend([(item, await ctx.step("charge", charge, event, object(), item)) for item in items])
        if event.attempts == 1:
            raise TransientError("again")

    await bus.publish("order.placed")
    assert till.charged == ["a", "b"]
    assert kept[2:] == [("b", "receipt of b"), ("a", "receipt of a")]


@MEMORY
async def test_a_step_that_the_handler_tries_again_itself_is_one_step(make_bus: MakeBus) -> None:
    bus, calls = make_bus(retry=PATIENT), []

    async def charge() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("net")
        return "receipt"

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        with suppress(ConnectionError):
            await ctx.step("charge", charge)
        if event.attempts == 1:
            await ctx.step("charge", charge)
            raise TransientError("later")

    await bus.publish("order.placed")
    assert len(calls) == 2


@MEMORY
async def test_what_is_no_function_is_refused_with_the_right_call(make_bus: MakeBus) -> None:
    bus = make_bus()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("charge", 5)  # type: ignore[arg-type]  # this is what is refused

    await bus.start()
    ended = await bus.emit("order.placed")
    assert "step 'charge': 5 is not callable: give the function and its arguments apart" in ended.errors[0]


@pytest.mark.parametrize("kind", ["async", "plain"])
@MEMORY
async def test_no_step_begins_after_the_event_was_cancelled_here(make_bus: MakeBus, kind: str) -> None:
    bus, till, begun, go_on, refused = make_bus(), Till(), asyncio.Event(), threading.Event(), []

    async def order(event: Event, ctx: Context) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(20)
        with pytest.raises(LeaseLost) as lost:
            await ctx.step("charge", till.charge, 1)
        refused.append(lost.value)

    def plain_order(event: Event, ctx: SyncContext) -> None:
        assert ctx.loop is not None
        ctx.loop.call_soon_threadsafe(begun.set)
        go_on.wait(20)
        with pytest.raises(LeaseLost) as lost:
            ctx.step("charge", till.charge, 1)
        refused.append(lost.value)

    bus.subscribe("order.placed", order if kind == "async" else plain_order, id="order")
    await bus.start()
    handle = bus.emit("order.placed")
    await begun.wait()
    await bus.cancel(handle, "withdrawn")
    go_on.set()
    await until(lambda: bool(refused))
    assert till.charged == []


async def test_other_arguments_than_the_kept_ones_are_reported(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus, till = make_bus(retry=PATIENT), Till()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("charge", till.charge, event.attempts)
        if event.attempts == 1:
            raise TransientError("again")

    with caplog.at_level(logging.WARNING, "durabus.worker"):
        await bus.publish("order.placed")
    assert till.charged == [1]
    assert "step 'charge' of event" in caplog.text
    assert "was kept with other arguments: its kept value is used" in caplog.text


@pytest.mark.parametrize("name", ["", "a > b", "> b", "a#2", "sleep", "\n"])
async def test_a_step_needs_a_plain_name(make_bus: MakeBus, store: EventStore, name: str) -> None:
    bus = make_bus()

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        await ctx.step(name, lambda: 1)

    event_id = await bus.publish("job")
    assert "step name" in (await store.get_event(event_id)).last_error  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("unhandled", ["complete", "dead_letter", "keep"])
async def test_an_event_whose_sleeping_handler_is_gone_ends_failed(
    make_bus: MakeBus, store: EventStore, unhandled: str
) -> None:
    bus, slept = make_bus(unhandled=unhandled), asyncio.Event()

    async def sleeper(event: Event, ctx: Context) -> None:
        slept.set()
        await ctx.sleep(0.3)

    @bus.on("other", id="other")
    async def other(event: Event) -> None: ...

    subscription = bus.subscribe("job", sleeper, id="sleeper")
    await bus.start()
    handle = bus.emit("job")
    await asyncio.wait_for(slept.wait(), 20)
    bus.unsubscribe(subscription)
    await bus.publish("other")
    event = await until_status(store, handle.event_id, *TERMINAL)
    assert event.status is EventStatus.FAILED
    assert event.errors == ("sleeper had begun, and no node has it any more",)


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_a_sleeper_wakes_although_the_handler_beside_it_has_failed_for_good(
    make_bus: MakeBus, store: EventStore, max_attempts: int
) -> None:
    bus, woken = make_bus(retry=PATIENT), []

    @bus.on("job", id="fails")
    async def fails(event: Event) -> None:
        raise TransientError("no")

    @bus.on("job", id="sleeps")
    async def sleeps(event: Event, ctx: Context) -> None:
        await ctx.sleep(0.1)
        woken.append(event.attempts)

    event_id = await bus.publish("job", max_attempts=max_attempts)
    assert len(woken) == 1
    event = await store.get_event(event_id)
    assert event is not None
    assert event.status is EventStatus.FAILED
    assert "no" in (event.last_error or "")


@pytest.mark.parametrize("how", ["except Exception", "task group"])
async def test_a_handler_that_catches_exceptions_does_not_catch_its_sleep(
    make_bus: MakeBus, store: EventStore, how: str
) -> None:
    bus, refunds = make_bus(), []

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        try:
            if how == "task group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.sleep(0.05))
            else:
                await ctx.sleep(0.05)
        except Exception as error:
            refunds.append(error)
            raise

    event_id = await bus.publish("job")
    event = await store.get_event(event_id)
    assert event is not None
    assert (event.status, event.errors, refunds) == (EventStatus.COMPLETED, (), [])


async def test_a_step_that_its_handler_left_running_is_kept_before_the_next_attempt(make_bus: MakeBus) -> None:
    bus, till = make_bus(retry=PATIENT), Till()

    async def slow_charge() -> int:
        await asyncio.sleep(0.1)
        await till.charge(7)
        return 7

    async def refuse() -> None:
        raise TransientError("no stock")

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        stock = refuse if event.attempts == 1 else asyncio.sleep
        await asyncio.gather(ctx.step("charge", slow_charge), ctx.step("stock", stock, *([0] * (event.attempts > 1))))

    await bus.publish("job")
    assert till.charged == [7]


async def test_a_value_that_is_not_stored_yet_travels_with_the_failed_attempt(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, till, keep = make_bus(retry=PATIENT), Till(), store.keep_results

    async def slow_keep(kept: Any) -> Any:
        await asyncio.sleep(0.5)
        return await keep(kept)

    monkeypatch.setattr(store, "keep_results", slow_keep)

    @bus.on("job", id="job", timeout=0.2)
    async def job(event: Event, ctx: Context) -> None:
        await ctx.step("charge", till.charge, 1)

    await bus.publish("job")
    assert till.charged == [1]


async def test_steps_of_one_name_find_their_values_by_their_arguments(make_bus: MakeBus) -> None:
    bus, receipts = make_bus(retry=PATIENT), []

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        names = ["ann", "bob"] if event.attempts == 1 else ["bob", "ann"]
        receipts.append({name: await ctx.step("charge", lambda who: f"receipt of {who}", name) for name in names})
        if event.attempts == 1:
            raise TransientError("again")

    await bus.publish("job")
    assert receipts[0] == receipts[1] == {"ann": "receipt of ann", "bob": "receipt of bob"}


async def test_a_step_returns_the_same_value_the_first_time_and_awaits_what_its_function_returns(
    make_bus: MakeBus,
) -> None:
    bus, till, values = make_bus(retry=PATIENT), Till(), []

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        values.append((await ctx.step("pair", lambda: (1, 2)), await ctx.step("charge", lambda: till.charge(3))))
        if event.attempts == 1:
            raise TransientError("again")

    await bus.publish("job")
    assert values[0] == values[1] == ([1, 2], {"receipt": 1, "amount": 3})


async def test_a_plain_handlers_verb_inside_the_event_loop_is_refused(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("job", id="job")
    def job(event: Event, ctx: SyncContext) -> None:
        async def inner() -> None:
            ctx.step("inner", lambda: 1)

        ctx.step("outer", inner)

    event_id = await bus.publish("job")
    event = await store.get_event(event_id)
    assert event is not None
    assert "was called inside the event loop" in (event.last_error or "")


async def test_a_manager_keeps_steps_too(store: EventStore) -> None:
    queue, till = EventQueue(store), Till()
    manager = EventManager(queue, retry=RetryPolicy(max_retries=3, base_delay=0.01))

    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("charge", till.charge, 1)
        if event.attempts == 1:
            raise TransientError("again")

    manager.register("order.placed", "order", order)
    await queue.publish("order.placed")
    for _ in range(500):
        done = await manager.process_next()
        if done is not None and done.attempts == 2:
            break
        await asyncio.sleep(0.02)
    assert till.charged == [1]


def test_a_snooze_needs_a_time() -> None:
    with pytest.raises(ConfigurationError, match="more than 0"):
        Snooze(0)
    with pytest.raises(
        ConfigurationError, match=r"Snooze\(datetime.datetime\(2030, 1, 1, 0, 0\)\): .* time zone, .*UTC"
    ):
        Snooze(datetime(2030, 1, 1))  # noqa: DTZ001


async def test_a_handler_id_must_not_look_like_a_step(make_bus: MakeBus) -> None:
    with pytest.raises(ConfigurationError, match="separates an id from the name of a step"):
        make_bus().subscribe("job", lambda event: None, id="a > b")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_after_the_claim_was_lost_raises_and_stores_nothing(
    make_bus: MakeBus, store: EventStore, kind: str
) -> None:
    bus, till, revoked, refused = make_bus(), Till(), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def revoke(event: Event) -> None:
        """End the event behind the back of its worker, which learns of it only with its next renewal."""
        await store.cancel_event(event.id, reason="a test took it")
        revoked.set()

    async def in_loop(event: Event, ctx: Context) -> None:
        await revoke(event)
        for amount in (1, 2):
            with pytest.raises(LeaseLost) as lost:
                await ctx.step("charge", till.charge, amount)
            refused.append(lost.value.subject)

    def in_thread(event: Event, ctx: SyncContext) -> None:
        asyncio.run_coroutine_threadsafe(revoke(event), loop).result()
        for amount in (1, 2):
            with pytest.raises(LeaseLost) as lost:
                ctx.step("charge", till.charge, amount)
            refused.append(lost.value.subject)

    bus.subscribe("job", in_loop if kind == "async" else in_thread, id="job")
    await bus.start()
    event = await bus.emit("job").stored()
    await asyncio.wait_for(revoked.wait(), 20)
    await bus.shutdown(20)
    assert refused == [event.id, event.id]
    assert till.charged == [1]  # this function ran, and its value was not kept
    assert await store.list_results(event.id) == []


async def test_a_sleep_needs_a_time_and_one_of_no_time_does_not_sleep(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> int:
        for wrong in (-1, float("nan"), float("inf"), "1"):
            with pytest.raises(ConfigurationError, match="delay="):
                await ctx.sleep(wrong)  # type: ignore[arg-type]
        await ctx.sleep(0)
        return event.fence

    await bus.start()
    assert await bus.emit("job").result() == 1


async def test_a_sleep_beside_a_step_loses_nothing_of_the_step(make_bus: MakeBus) -> None:
    bus, till, values = make_bus(), Till(), []

    async def slow_charge() -> Any:
        await asyncio.sleep(0.05)
        return (await till.charge(7))["amount"]

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        amount, _ = await asyncio.gather(ctx.step("charge", slow_charge), ctx.sleep(0.1))
        values.append((amount, event.attempts))

    await bus.publish("job")
    assert till.charged == [7]
    assert values == [(7, 1)]


async def test_a_child_that_was_emitted_inside_a_step_is_stored_with_it(make_bus: MakeBus, store: EventStore) -> None:
    bus, stored = make_bus(retry=PATIENT), []

    @bus.on("child", id="child")
    async def child(event: Event) -> None: ...

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        await ctx.step("tell", lambda: ctx.emit("child", 1).event_id)
        stored.append(len((await store.find(EventQuery(parent_ids=(event.event_id,)))).events))
        if event.attempts < 3:
            raise TransientError("again")

    await bus.publish("job")
    assert stored == [1, 1, 1]
