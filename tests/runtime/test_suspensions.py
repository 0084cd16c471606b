"""Sleeps and waits that end an attempt: inside a step, side by side, and swallowed by their handler."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until_status

from durabus import Context, DLQInspector, Event, EventQuery, EventStatus, EventStore, Snooze, SyncContext

PATIENT = {"max_retries": 5, "base_delay": 0.01}
MEMORY = pytest.mark.parametrize("url", ["memory"], indirect=True)
"""For what does not depend on the store."""
SOON = 20.0


async def snooze(ctx: Context) -> None:
    raise Snooze(0.05)


async def sleep_in_a_group(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.sleep(0.05))


async def snooze_in_a_group(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(snooze(ctx))


PAUSES: dict[str, Callable[[Context], Awaitable[object]]] = {
    "ctx.sleep": lambda ctx: ctx.sleep(0.05),
    "ctx.sleep_until": lambda ctx: ctx.sleep_until(datetime.now(UTC) + timedelta(seconds=0.05)),
    "ctx.wait_for": lambda ctx: ctx.wait_for("never", timeout=0.05),
    "Snooze": snooze,
}
IN_GROUPS = {"ctx.sleep": sleep_in_a_group, "Snooze": snooze_in_a_group}


@pytest.mark.parametrize("retry", [None, PATIENT], ids=["no retry", "retry of the step"])
@pytest.mark.parametrize(("what", "pause"), [*PAUSES.items(), *IN_GROUPS.items()])
@MEMORY
async def test_a_step_that_sleeps_waits_or_snoozes_ends_the_event_and_runs_once(
    make_bus: MakeBus,
    store: EventStore,
    what: str,
    pause: Callable[[Context], Awaitable[object]],
    retry: dict[str, Any] | None,
) -> None:
    """At wake-up its function would run again, and charge the card a second time."""
    bus, charged = make_bus(retry=PATIENT), list[int]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        async def charge() -> None:
            charged.append(event.fence)
            await pause(ctx)

        await ctx.step("charge", charge, retry=retry)

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert charged == [1]
    assert event.status is EventStatus.COMPLETED_WITH_ERRORS
    assert f"{what} in the function of step 'charge'" in (event.last_error or "")
    assert "between two steps" in (event.last_error or "")
    assert [one for one in await store.list_results(event.id) if one.handler_id != "order"] == []


@pytest.mark.parametrize("how", ["function", "coroutine", "thread"])
@MEMORY
async def test_a_step_of_a_plain_handler_must_not_sleep_either(make_bus: MakeBus, store: EventStore, how: str) -> None:
    bus, charged = make_bus(retry=PATIENT), list[int]()

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        def charge() -> None:
            charged.append(event.fence)
            ctx.sleep(0.05)

        async def charge_in_loop() -> None:
            if how == "thread":
                await asyncio.to_thread(charge)
            else:
                charged.append(event.fence)
                raise Snooze(0.05)

        ctx.step("charge", charge if how == "function" else charge_in_loop)

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert charged == [1]
    assert "in the function of step 'charge'" in (event.last_error or "")


@MEMORY
async def test_the_error_of_a_step_in_a_task_group_ends_the_event(make_bus: MakeBus, store: EventStore) -> None:
    bus, charged = make_bus(retry=PATIENT), list[int]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        def charge() -> object:
            charged.append(event.fence)
            return object()

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("charge", charge))

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert (charged, event.status) == ([1], EventStatus.COMPLETED_WITH_ERRORS)


async def sleeps(ctx: Context) -> None:
    await asyncio.gather(*(ctx.sleep(2) for _ in range(3)))


async def timeouts(ctx: Context) -> None:
    assert await asyncio.gather(*(ctx.wait_for(f"never.{n}", timeout=2) for n in range(3))) == [None] * 3


async def both(ctx: Context) -> None:
    await asyncio.gather(ctx.sleep(2), ctx.wait_for("never", timeout=2), sleeps(ctx))


@pytest.mark.parametrize("side_by_side", [sleeps, timeouts, both], ids=lambda one: one.__name__)
async def test_sleeps_and_waits_side_by_side_begin_at_the_same_instant(
    make_bus: MakeBus, store: EventStore, side_by_side: Callable[[Context], Awaitable[None]]
) -> None:
    bus = make_bus()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await side_by_side(ctx)

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert (event.status, event.attempts) == (EventStatus.COMPLETED, 1)
    assert 2 <= event.updated_ts - event.created_ts < 4  # two of them one after the other would take 4 s


async def test_sleeps_of_threads_begin_at_the_same_instant(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        with ThreadPoolExecutor() as threads:
            for nap in [threads.submit(ctx.sleep, 2) for _ in range(3)]:  # map would drop calls that have not begun
                nap.result()

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert 2 <= event.updated_ts - event.created_ts < 4  # two of them one after the other would take 4 s


async def test_sleeps_side_by_side_in_handlers_of_two_nodes_begin_at_the_same_instant(
    make_bus: MakeBus, store: EventStore
) -> None:
    """One of the handlers runs under a claim of its own."""
    one, two = make_bus(handler_mode="parallel"), make_bus(handler_mode="parallel")

    async def order(event: Event, ctx: Context) -> None:
        await sleeps(ctx)

    for name, bus in (("a", one), ("b", two)):
        bus.subscribe("order.placed", order, id=name)
        await bus.start()
    event = await _ended(store, await asyncio.wait_for(one.publish("order.placed"), SOON))
    assert 2 <= event.updated_ts - event.created_ts < 4  # two of them one after the other would take 4 s


async def test_each_of_several_sleeps_goes_on_until_its_own_end(make_bus: MakeBus, store: EventStore) -> None:
    """The first to end wakes the event, whichever of them began first."""
    bus, picked = make_bus(), list[float]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        picked.append((event.picked_ts or 0.0) - event.created_ts)
        await asyncio.gather(ctx.sleep(1.2), ctx.sleep(0.4), ctx.sleep(1.2))

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert 0.4 <= picked[1] < 1.2 <= picked[-1]
    assert event.updated_ts - event.created_ts < 1.6


async def test_a_sleep_beside_a_wait_goes_on_until_its_own_end(make_bus: MakeBus, store: EventStore) -> None:
    """The event is there long before the end of the sleep, and makes the waiting event due."""
    bus, calls, found = make_bus(), list[float](), list[Event | None]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        calls.append(event.picked_ts or 0.0)
        if len(calls) == 1:
            await bus.emit("payment.settled", parent_id=None).stored()
        _, payment = await asyncio.gather(ctx.sleep(0.5), ctx.wait_for("payment.settled", timeout=3600))
        found.append(payment)

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert [one and one.type for one in found] == ["payment.settled"]
    assert len(calls) == 3
    assert 0.5 <= event.updated_ts - event.created_ts < 1.5


async def bare_except(ctx: Context) -> None:
    try:
        await ctx.sleep(0.05)
    except:  # noqa: E722  (this is what is refused)
        return


async def base_exception(ctx: Context) -> None:
    with suppress(BaseException):
        await ctx.sleep_until(datetime.now(UTC) + timedelta(seconds=30))


async def return_exceptions(ctx: Context) -> None:
    await asyncio.gather(ctx.wait_for("never", timeout=0.05), ctx.sleep(0.05), return_exceptions=True)


async def leave_a_task_behind(ctx: Context) -> None:
    await asyncio.wait({asyncio.create_task(ctx.wait_for("never"))})


@pytest.mark.parametrize(
    ("swallow", "verbs"),
    [
        (bare_except, "ctx.sleep"),
        (base_exception, "ctx.sleep_until"),
        (return_exceptions, "ctx.wait_for and ctx.sleep"),
        (leave_a_task_behind, "ctx.wait_for"),
    ],
)
@MEMORY
async def test_a_handler_that_swallows_its_sleep_ends_with_a_clear_error(
    make_bus: MakeBus, store: EventStore, swallow: Callable[[Context], Awaitable[None]], verbs: str
) -> None:
    bus, calls = make_bus(retry=PATIENT), list[int]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> str:
        calls.append(event.fence)
        await swallow(ctx)
        ctx.emit("shipped")
        return "shipped"

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert (calls, event.status) == ([1], EventStatus.COMPLETED_WITH_ERRORS)
    error = event.last_error or ""
    assert f"StepError: handler order returned before the end of its {verbs}:" in error
    assert "do not catch BaseException" in error
    assert "do not use return_exceptions=True" in error
    assert (await store.find(EventQuery(type="shipped"))).events == []


@MEMORY
async def test_a_plain_handler_that_swallows_its_sleep_ends_with_a_clear_error(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, calls = make_bus(retry=PATIENT), list[int]()

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        calls.append(event.fence)
        with suppress(BaseException):
            ctx.sleep(0.05)

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert (calls, event.status) == ([1], EventStatus.COMPLETED_WITH_ERRORS)
    assert "returned before the end of its ctx.sleep" in (event.last_error or "")


@MEMORY
async def test_a_requeue_of_a_handler_that_swallowed_its_sleep_keeps_the_steps(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, charged, swallows = make_bus(), list[int](), [True]

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await ctx.step("charge", charged.append, 40)
        with suppress(BaseException) if swallows[0] else nullcontext():
            await ctx.sleep(0.05)

    event_id = await asyncio.wait_for(bus.publish("order.placed"), SOON)
    swallows[0] = False
    await DLQInspector(store).retry(event_id)
    await until_status(store, (await _ended(store, event_id)).id, EventStatus.COMPLETED)
    assert charged == [40]


@pytest.mark.parametrize("how", ["held", "stored", "in a step", "sleep"])
@MEMORY
async def test_a_wait_for_the_answer_to_an_event_that_is_not_stored_is_reported_once(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    bus = make_bus(unhandled="complete")

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        if how == "in a step":
            await ctx.step("ask", lambda: ctx.emit("question").event_id)
        elif how == "stored":
            await ctx.emit("question").stored()
        else:
            ctx.emit("question")
        await (ctx.sleep(0.05) if how == "sleep" else ctx.wait_for("answer", timeout=0.05))

    with caplog.at_level(logging.WARNING, "durabus.worker"):
        for _ in range(2):
            await asyncio.wait_for(bus.publish("order.placed"), SOON)
    told = [one.getMessage() for one in caplog.records if "waits for an event" in one.getMessage()]
    assert len(told) == (how == "held")
    assert all("handler order of event" in one and "await ctx.emit(...).stored()" in one for one in told)


@pytest.mark.parametrize("verb", ["sleep", "wait", "snooze"])
@MEMORY
async def test_what_runs_beside_a_sleep_does_not_prolong_it(make_bus: MakeBus, store: EventStore, verb: str) -> None:
    """The event goes back to the queue after the second handler, when most of the sleep is over."""
    bus = make_bus()

    @bus.on("order.placed", id="sleeps")
    async def pause(event: Event, ctx: Context) -> None:
        if verb == "sleep":
            await ctx.sleep(1.4)
        elif verb == "wait":
            await ctx.wait_for("never", timeout=1.4)
        elif event.fence == 1:
            raise Snooze(1.4)

    @bus.on("order.placed", id="works")
    async def work(event: Event) -> None:
        await asyncio.sleep(1.2)

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert 1.4 <= event.updated_ts - event.created_ts < 2.6  # one after the other they would take 2.6 s


@MEMORY
async def test_a_step_that_runs_beside_a_sleep_does_not_prolong_it(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        await asyncio.gather(ctx.step("work", asyncio.sleep, 1.2), ctx.sleep(1.4))

    event = await _ended(store, await asyncio.wait_for(bus.publish("order.placed"), SOON))
    assert 1.4 <= event.updated_ts - event.created_ts < 2.6  # one after the other they would take 2.6 s


async def test_sleeps_on_two_nodes_run_at_the_same_time(make_bus: MakeBus, store: EventStore) -> None:
    """One of the handlers runs under a claim of its own, and is awaited while it sleeps for so short."""
    one, two = make_bus(handler_mode="parallel"), make_bus(handler_mode="parallel")

    async def order(event: Event, ctx: Context) -> None:
        await ctx.sleep(2)

    for name, bus in (("a", one), ("b", two)):
        bus.subscribe("order.placed", order, id=name)
        await bus.start()
    event = await _ended(store, await asyncio.wait_for(one.publish("order.placed"), SOON))
    assert 2 <= event.updated_ts - event.created_ts < 4  # one after the other they would take 4 s


async def _ended(store: EventStore, event_id: str) -> Event:
    event = await store.get_event(event_id)
    assert event is not None
    return event
