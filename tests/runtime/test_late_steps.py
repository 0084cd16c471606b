"""What a task or a thread begins after the attempt of its handler has ended: it is refused, and calls nothing."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus
from tests.worker.support import until

from durabus import Context, Event, EventBus, EventQuery, EventStore, LeaseLost, SyncContext, TransientError

PATIENT = {"max_retries": 5, "base_delay": 0.01}
MEMORY = pytest.mark.parametrize("url", ["memory"], indirect=True)
"""For what does not depend on the store."""
SOON = 20.0


async def fail(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise TransientError("no stock")


ENDS: dict[str, Callable[[Context], Awaitable[object]]] = {
    "fails": fail,
    "sleeps": lambda ctx: ctx.sleep(0.05),
    "waits": lambda ctx: ctx.wait_for("never", timeout=0.05),
}
"""How the first attempt ends."""


def left_behind(bus: EventBus, late: Callable[[Context], Awaitable[object]], end: str) -> list[asyncio.Task[object]]:
    """Subscribe a handler that calls ``late`` in both attempts: in the first one only after the attempt has ended."""
    tasks: list[asyncio.Task[object]] = []
    over = asyncio.Event()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        async def begin() -> object:
            if task is tasks[0]:
                await over.wait()
            return await late(ctx)

        task = asyncio.create_task(begin())
        tasks.append(task)
        if len(tasks) > 1:
            over.set()
        await asyncio.gather(task, ENDS[end](ctx))

    return tasks


@pytest.mark.parametrize("end", ENDS)
async def test_a_step_that_begins_after_its_attempt_has_ended_calls_nothing(make_bus: MakeBus, end: str) -> None:
    bus, charged = make_bus(retry=PATIENT), list[int]()
    tasks = left_behind(bus, lambda ctx: ctx.step("charge", charged.append, ctx.fence), end)
    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert charged == [2]
    with pytest.raises(LeaseLost, match="handler order has ended"):
        await tasks[0]


async def emit(ctx: Context) -> None:
    ctx.emit("child")


async def emit_on_the_bus(ctx: Context) -> None:
    assert ctx.emitter is not None
    ctx.emitter("child")


@pytest.mark.parametrize(
    "late",
    [
        lambda ctx: ctx.sleep(0.01),
        lambda ctx: ctx.wait_for("never", timeout=0.01),
        emit,
        emit_on_the_bus,
        lambda ctx: ctx.emit("child").stored(),
        lambda ctx: ctx.emit("child").completed(),
    ],
    ids=["sleep", "wait_for", "emit", "bus.emit", "stored", "completed"],
)
@MEMORY
async def test_no_verb_works_after_the_attempt_has_ended(
    make_bus: MakeBus, store: EventStore, late: Callable[[Context], Awaitable[object]]
) -> None:
    bus = make_bus(retry=PATIENT, unhandled="complete")
    tasks = left_behind(bus, late, "fails")
    await bus.start()
    order = await asyncio.wait_for(bus.emit("order.placed").completed(), SOON)
    with pytest.raises(LeaseLost, match="handler order has ended"):
        await tasks[0]
    children = (await store.find(EventQuery(type="child"))).events
    assert [child.parent_id for child in children] in ([], [order.event_id])


@MEMORY
async def test_a_task_that_its_handler_left_behind_may_emit_events_of_their_own(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus = make_bus(retry=PATIENT)
    tasks = left_behind(bus, lambda ctx: ctx.emit("note", parent_id=None).stored(), "fails")
    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    await tasks[0]
    assert [note.parent_id for note in (await store.find(EventQuery(type="note"))).events] == [None, None]


@pytest.mark.parametrize("options", [{"timeout": 0.1}, {"event_timeout": 0.1}], ids=["handler", "event"])
@MEMORY
async def test_a_step_that_begins_after_a_timeout_calls_nothing(make_bus: MakeBus, options: dict[str, float]) -> None:
    event_timeout = options.get("event_timeout")
    bus, charged = make_bus(retry=PATIENT, event_timeout=event_timeout), list[int]()
    over, left = asyncio.Event(), list[asyncio.Task[Any]]()

    @bus.on("order.placed", id="order", timeout=options.get("timeout", 30))
    async def order(event: Event, ctx: Context) -> None:
        async def pay() -> None:
            await over.wait()
            await ctx.step("charge", charged.append, event.attempts)

        left.append(asyncio.create_task(pay()))
        if event.attempts == 1:
            await asyncio.sleep(20)
        over.set()
        await left[-1]

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert charged == [2]
    with pytest.raises(LeaseLost, match="handler order has ended"):
        await left[0]


@MEMORY
async def test_a_step_of_a_thread_that_a_plain_handler_left_behind_calls_nothing(make_bus: MakeBus) -> None:
    bus, charged, over, refused = make_bus(retry=PATIENT), list[int](), threading.Event(), list[str]()

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        def late() -> None:
            over.wait(SOON)
            for verb in (partial(ctx.step, "charge", charged.append, event.attempts), partial(ctx.emit, "child")):
                try:
                    verb()
                except LeaseLost as lost:
                    refused.append(lost.reason)

        thread = threading.Thread(target=late)
        thread.start()
        if event.attempts == 1:
            raise TransientError("no stock")
        over.set()
        thread.join(SOON)

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    await until(lambda: len(refused) == 2)
    assert charged == [2]


@MEMORY
async def test_an_attempt_waits_for_a_step_in_a_thread_that_its_plain_handler_left_behind(make_bus: MakeBus) -> None:
    bus, charged, begun, go_on = make_bus(retry=PATIENT), list[int](), threading.Event(), threading.Event()

    def charge() -> None:
        begun.set()
        go_on.wait(SOON)
        charged.append(1)

    @bus.on("order.placed", id="order")
    def order(event: Event, ctx: SyncContext) -> None:
        if event.attempts == 1:
            threading.Thread(target=ctx.step, args=("charge", charge)).start()
            begun.wait(SOON)
            raise TransientError("no stock")
        ctx.step("charge", charge)

    await bus.start()
    handle = bus.emit("order.placed")
    await until(begun.is_set)
    await asyncio.sleep(0.1)  # time for a second attempt, if it did not wait
    go_on.set()
    assert (await asyncio.wait_for(handle.completed(), SOON)).attempts == 2
    assert charged == [1]


@MEMORY
async def test_a_step_inside_a_step_belongs_to_it_although_the_handler_has_failed(make_bus: MakeBus) -> None:
    bus, calls = make_bus(retry=PATIENT), list[str]()

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        async def outer() -> None:
            calls.append("outer")
            await asyncio.sleep(0.05)
            await ctx.step("inner", calls.append, "inner")

        await asyncio.gather(ctx.step("outer", outer), fail(ctx))

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert calls == ["outer", "inner"]
