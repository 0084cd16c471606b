"""Seed 003: handlers have a timeout, and plain functions run in threads."""

import asyncio
import threading
from collections.abc import Awaitable

from tests.seeds.support import ONCE, QUICK, Recorder, stored

from durabus import Event, EventBus, EventStatus, EventStore, ResultStatus, RetryPolicy
from durabus.worker.handler import DEFAULT_TIMEOUT


def test_the_default_timeout_is_thirty_seconds() -> None:
    assert DEFAULT_TIMEOUT == 30.0


async def test_an_async_handler_that_takes_too_long_is_cancelled_and_fails(store: EventStore) -> None:
    cancelled = asyncio.Event()

    async def handler(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", handler, id="slow", timeout=0.02)
        event = await stored(store, await bus.publish("user.created"))
    assert cancelled.is_set()
    assert (event.status, event.errors) == (
        EventStatus.FAILED,
        ("TimeoutError: handler slow took longer than 0.02 s",),
    )


async def test_a_timeout_is_retried_like_any_failure(store: EventStore) -> None:
    calls = 0

    async def handler(event: Event) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            await asyncio.Event().wait()

    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler, timeout=0.02)
        event = await stored(store, await bus.publish("user.created"))
    assert (calls, event.status) == (3, EventStatus.COMPLETED)


async def test_a_timeout_is_recorded_as_such(store: EventStore) -> None:
    async def handler(event: Event) -> None:
        await asyncio.Event().wait()

    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", handler, timeout=0.02)
        (result,) = await store.list_results(await bus.publish("user.created"))
    assert result.status is ResultStatus.TIMED_OUT


async def test_a_plain_function_that_takes_too_long_fails(store: EventStore) -> None:
    def handler(event: Event) -> None:
        threading.Event().wait(0.1)

    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", handler, id="slow", timeout=0.02)
        event = await stored(store, await bus.publish("user.created"))
    assert event.errors == ("TimeoutError: handler slow took longer than 0.02 s",)


async def test_what_a_plain_function_does_after_its_timeout_is_not_seen(store: EventStore) -> None:
    def handler(event: Event) -> str:
        threading.Event().wait(0.1)
        return "too late"

    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", handler, timeout=0.02)
        event_id = await bus.publish("user.created")
        (result,) = await store.list_results(event_id)
    assert (result.status, result.value) == (ResultStatus.TIMED_OUT, None)


async def test_no_timeout_may_be_asked_for(store: EventStore) -> None:
    release = asyncio.Event()

    async def handler(event: Event) -> None:
        await release.wait()

    async with EventBus(store) as bus:
        bus.subscribe("user.*", handler, timeout=None)
        handle = bus.emit("user.created")
        release.set()
        assert (await handle).status is EventStatus.COMPLETED


async def test_each_subscription_has_its_own_timeout(store: EventStore) -> None:
    async def wait_a_little(event: Event) -> None:
        await asyncio.sleep(0.05)

    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("short", wait_a_little, timeout=0.01)
        bus.subscribe("long", wait_a_little, timeout=10)
        short, long = await asyncio.gather(bus.publish("short"), bus.publish("long"))
        assert (await stored(store, short)).status is EventStatus.FAILED
        assert (await stored(store, long)).status is EventStatus.COMPLETED


async def test_a_plain_function_runs_in_a_thread_and_does_not_stop_the_loop(store: EventStore) -> None:
    inside, release = threading.Event(), threading.Event()
    threads: list[str] = []

    def blocking(event: Event) -> None:
        threads.append(threading.current_thread().name)
        inside.set()
        release.wait(10)

    quick = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe("blocking", blocking)
        bus.subscribe("quick", quick)
        handle = bus.emit("blocking")
        await asyncio.to_thread(inside.wait, 10)
        await bus.publish("quick")
        release.set()
        await handle
    assert quick.calls == 1
    assert threads[0] != threading.main_thread().name


async def test_what_a_plain_function_raises_is_retried(store: EventStore) -> None:
    calls = 0

    def handler(event: Event) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("not today")

    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler)
        event = await stored(store, await bus.publish("user.created"))
    assert (calls, event.status, event.errors) == (2, EventStatus.COMPLETED, ("ValueError: not today",))


async def test_a_plain_function_that_returns_an_awaitable_has_it_awaited(store: EventStore) -> None:
    handler = Recorder()

    def plain(event: Event) -> Awaitable[None]:
        return handler(event)

    async with EventBus(store, retry=RetryPolicy(max_retries=0)) as bus:
        bus.subscribe("user.*", plain)
        event = await stored(store, await bus.publish("user.created"))
    assert (handler.calls, event.status) == (1, EventStatus.COMPLETED)
