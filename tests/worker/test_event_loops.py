"""A bus belongs to the event loop it was started on. It refuses calls from other loops and threads, without harm."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.seeds.support import Gate, Recorder

from durabus import ConfigurationError, Event, EventBus, EventStatus
from durabus.bus.handle import Handle

ELSEWHERE = "belongs to the event loop it was started on"


def on_another_loop(work: Callable[[], Coroutine[Any, Any, object]]) -> object:
    return asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda bus: bus.start(), id="start"),
        pytest.param(lambda bus: bus.publish("user.created"), id="publish"),
        pytest.param(lambda bus: bus.wait_until_idle(), id="wait_until_idle"),
        pytest.param(lambda bus: bus.shutdown(), id="shutdown"),
    ],
)
async def test_a_call_from_another_loop_is_refused(call: Callable[[EventBus], Coroutine[Any, Any, object]]) -> None:
    handler = Recorder()
    async with EventBus("memory://") as bus:
        bus.subscribe("user.*", handler)
        with pytest.raises(ConfigurationError, match=f"{ELSEWHERE}.*another event loop"):
            await asyncio.to_thread(on_another_loop, lambda: call(bus))
        await bus.publish("user.created")
    assert handler.calls == 1


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda bus: bus.emit("user.created"), id="emit"),
        pytest.param(lambda bus: bus.subscribe("user.*", print), id="subscribe"),
        pytest.param(lambda bus: bus.unsubscribe("none"), id="unsubscribe"),
    ],
)
async def test_a_call_from_a_thread_without_a_loop_is_refused(call: Callable[[EventBus], object]) -> None:
    handler = Recorder()
    async with EventBus("memory://") as bus:
        bus.subscribe("user.*", handler, id="first")
        with pytest.raises(ConfigurationError, match=f"{ELSEWHERE}.*thread without an event loop"):
            await asyncio.to_thread(call, bus)
        await bus.publish("user.created")
        assert await bus.wait_until_idle(0)
    assert handler.calls == 1


async def test_a_handle_is_waited_for_on_its_own_loop_and_read_anywhere() -> None:
    async with EventBus("memory://") as bus:
        gate = Gate()
        bus.subscribe("user.*", gate)
        handle = bus.emit("user.created")
        await gate.entered.wait()
        with pytest.raises(ConfigurationError, match=ELSEWHERE):
            await asyncio.to_thread(on_another_loop, handle.completed)
        gate.opened.set()
        assert (await handle).status is EventStatus.COMPLETED
        event = await asyncio.to_thread(on_another_loop, handle.completed)
        assert isinstance(event, Event)
        assert event.status is EventStatus.COMPLETED


def test_a_bus_whose_loop_has_ended_says_so_instead_of_hanging() -> None:
    bus = EventBus("memory://")
    handles: list[Handle] = []

    async def forget_to_shut_down() -> None:
        gate = Gate()
        bus.subscribe("user.*", gate)
        await bus.start()
        handles.append(bus.emit("user.created"))
        await gate.entered.wait()

    asyncio.run(forget_to_shut_down())
    for call in (lambda: bus.publish("user.created"), bus.start, bus.wait_until_idle):
        with pytest.raises(ConfigurationError, match=ELSEWHERE):
            on_another_loop(call)
    assert handles[0].done, "its end will not be known: that was told when the loop ended"


def test_a_bus_may_be_made_outside_of_any_loop() -> None:
    bus, seen = EventBus("memory://"), threading.Event()

    async def use() -> None:
        bus.subscribe("user.*", lambda event: seen.set())
        async with bus:
            await bus.publish("user.created")

    asyncio.run(use())
    assert seen.is_set()


def test_a_bus_that_was_not_started_belongs_to_no_event_loop() -> None:
    bus = EventBus("memory://")
    assert asyncio.run(bus.wait_until_idle(1))

    async def use() -> None:
        async with bus:
            await bus.publish("user.created")

    asyncio.run(use())
