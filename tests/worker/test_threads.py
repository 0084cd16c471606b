"""Threads for plain handlers: how many there are, what waits for one, and what never begins."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from tests.seeds.support import until_status
from tests.worker.support import WatchedStore, all_completed, filled, make_event, make_handler, until, working

from durabus import Event, EventBus, EventManager, EventQueue, EventStatus
from durabus.model.statuses import ResultStatus
from durabus.stores.memory.store import MemoryStore
from durabus.worker.breaker import BreakerState
from durabus.worker.execution import HandlerOutcome, execute
from durabus.worker.handler import Context
from durabus.worker.threads import HandlerThreads, NotStarted


@pytest.fixture
def threads() -> Iterator[HandlerThreads]:
    threads = HandlerThreads(1, "test-threads")
    yield threads
    threads.shutdown()


@pytest.fixture
async def release() -> AsyncIterator[threading.Event]:
    """An event that frees every function that ``busy`` holds, at the end of the test at the latest."""
    release = threading.Event()
    yield release
    release.set()


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("test-threads")]


async def busy(threads: HandlerThreads, release: threading.Event) -> None:
    """Keep one thread busy until ``release``."""
    begun = threading.Event()

    def hold() -> None:
        begun.set()
        release.wait(30)

    threads.submit(hold)
    await asyncio.to_thread(begun.wait, 10)


async def run(threads: HandlerThreads, function: Callable[..., Any], limit: float | None) -> HandlerOutcome:
    return await execute(make_handler(function, timeout=limit), Context(make_event(), "w:1"), threads)


async def test_there_are_as_many_threads_as_needed_and_no_more_than_allowed() -> None:
    threads, meeting, most = HandlerThreads(3, "test-threads"), threading.Barrier(3), 0
    for _ in range(5):
        for future in [threads.submit(meeting.wait, 10) for _ in range(3)]:
            await asyncio.wrap_future(future)
        most = max(most, len(alive()))
    threads.shutdown()
    assert most == 3


async def test_a_thread_that_is_done_takes_the_next_call() -> None:
    """A thread returns its result before it is free again, so now and then a call still gets a new one."""
    threads = HandlerThreads(40, "test-threads")
    for _ in range(40):
        await asyncio.wrap_future(threads.submit(int))
    number = len(alive())
    threads.shutdown()
    await until(lambda: not alive())
    assert number < 20


async def test_a_call_waits_for_a_free_thread(threads: HandlerThreads, release: threading.Event) -> None:
    await busy(threads, release)
    waiting = threads.submit(int, "7")
    assert not waiting.running()
    release.set()
    assert await asyncio.wrap_future(waiting) == 7


async def test_the_caller_gets_the_error_that_a_function_raises(threads: HandlerThreads) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.wrap_future(threads.submit(int, "seven"))
    assert await asyncio.wrap_future(threads.submit(int, "7")) == 7


async def test_a_thread_that_yields_lets_another_one_run(threads: HandlerThreads, release: threading.Event) -> None:
    await busy(threads, release)
    waiting = threads.submit(int, "7")
    threads.yield_thread()
    assert await asyncio.wrap_future(waiting) == 7
    threads.resume()
    release.set()
    await until(lambda: len(alive()) <= 1)


async def test_after_shutdown_nothing_begins(threads: HandlerThreads, release: threading.Event) -> None:
    await busy(threads, release)
    waiting = threads.submit(int)
    threads.shutdown()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(int)
    release.set()
    await until(lambda: not alive())


async def test_threads_that_were_forgotten_end() -> None:
    threads = HandlerThreads(1, "test-threads")
    await asyncio.wrap_future(threads.submit(int))
    assert alive()
    del threads
    gc.collect()
    await until(lambda: not alive())


async def test_handler_threads_do_not_keep_the_program_from_ending(threads: HandlerThreads) -> None:
    await asyncio.wrap_future(threads.submit(int))
    assert all(thread.daemon for thread in alive())


async def test_the_wait_for_a_thread_is_not_charged_as_the_functions_time(
    threads: HandlerThreads, release: threading.Event
) -> None:
    await busy(threads, release)
    end = threading.Event()
    begun = threading.Event()

    def handler(event: Event) -> str:
        begun.set()
        end.wait(10)
        return "done"

    calling = asyncio.create_task(run(threads, handler, 2.0))
    await asyncio.sleep(1.2)  # the time is what is tested
    release.set()
    await asyncio.to_thread(begun.wait, 10)
    await asyncio.sleep(1.0)
    end.set()
    outcome = await calling
    assert (outcome.status, outcome.value) == (ResultStatus.SUCCEEDED, "done")


async def test_the_functions_own_time_is_counted_from_its_begin(
    threads: HandlerThreads, release: threading.Event
) -> None:
    await busy(threads, release)
    never = threading.Event()
    calling = asyncio.create_task(run(threads, lambda event: never.wait(0.6), 0.3))
    await asyncio.sleep(0.15)
    release.set()
    async with asyncio.timeout(20):
        assert (await calling).status is ResultStatus.TIMED_OUT


async def test_a_function_for_which_no_thread_is_free_has_not_failed_and_never_begins(
    threads: HandlerThreads, release: threading.Event
) -> None:
    await busy(threads, release)
    calls: list[Event] = []
    handler = make_handler(calls.append, timeout=0.02)
    for _ in range(5):
        with pytest.raises(NotStarted, match="no thread was free"):
            await execute(handler, Context(make_event(), "w:1"), threads)
    assert handler.breaker.state is BreakerState.CLOSED
    release.set()
    await asyncio.wrap_future(threads.submit(int))
    assert calls == []


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_a_function_whose_wait_for_a_thread_is_cancelled_never_begins(
    threads: HandlerThreads, release: threading.Event, limit: float | None
) -> None:
    await busy(threads, release)
    calls: list[Event] = []
    calling = asyncio.create_task(run(threads, calls.append, limit))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()
    release.set()
    await asyncio.wrap_future(threads.submit(int))
    assert calls == []


async def test_a_function_whose_threads_are_closed_has_not_failed(
    threads: HandlerThreads, release: threading.Event
) -> None:
    await busy(threads, release)
    calling = asyncio.create_task(run(threads, print, None))
    await asyncio.sleep(0)
    threads.shutdown()
    with pytest.raises(NotStarted, match="closed before it began"):
        await calling
    with pytest.raises(NotStarted, match="closed"):
        await run(threads, print, None)


async def test_an_event_whose_handler_got_no_thread_goes_back_with_its_attempt(release: threading.Event) -> None:
    store = MemoryStore()
    async with EventBus(store, concurrency=1, retry={"max_retries": 0}) as bus:
        bus.subscribe("quick", lambda event: event.attempts, timeout=0.05)
        await busy(bus._dispatcher._threads, release)
        quick = bus.emit("quick")
        waiting = await until_status(store, (await quick.stored()).id, EventStatus.PROCESSING)
        back = await until_status(store, waiting.id, EventStatus.PENDING)
        assert (back.attempts, back.errors) == (0, ())
        release.set()
        assert (await quick.result(), (await quick).status) == (1, EventStatus.COMPLETED)


async def test_handlers_that_were_done_are_kept_when_the_next_gets_no_thread(release: threading.Event) -> None:
    store, calls = MemoryStore(), []
    async with EventBus(store, concurrency=1, retry={"max_retries": 0}) as bus:

        async def first(event: Event) -> None:
            calls.append("first")

        bus.subscribe("quick", first, id="first")
        bus.subscribe("quick", lambda event: calls.append("second"), id="second", timeout=0.05)
        await busy(bus._dispatcher._threads, release)
        quick = await bus.emit("quick").stored()
        await until_status(store, quick.id, EventStatus.PROCESSING)
        await until_status(store, quick.id, EventStatus.PENDING)
        release.set()
        await until_status(store, quick.id, EventStatus.COMPLETED)
    assert calls == ["first", "second"]


async def test_a_shutdown_gives_back_what_waits_for_a_thread_and_it_never_begins(release: threading.Event) -> None:
    store, calls = WatchedStore(), []
    begun = threading.Event()

    def handler(event: Event) -> None:
        calls.append(event.payload["n"])
        begun.set()
        release.wait(30)

    async with working(store, handler, concurrency=2) as worker:
        worker._dispatcher._threads._pool.resize(-31)  # one is left
        await filled(store, 2)
        await asyncio.to_thread(begun.wait, 10)
        await until(lambda: worker.in_flight == 2)
        await worker.stop(0.01)
        assert [event.payload["n"] for event in store.in_status(EventStatus.PENDING)] == [1]
        assert [event.payload["n"] for event in store.in_status(EventStatus.PROCESSING)] == [0], "its function runs"
        release.set()
        await asyncio.wrap_future(worker._dispatcher._threads.submit(int))
    assert calls == [0]


async def test_a_manager_that_gets_no_thread_for_a_step_puts_the_event_back(release: threading.Event) -> None:
    store = WatchedStore()
    manager = EventManager(EventQueue(store), timeout=0.02, concurrency=1)
    manager.register("foo", "handler1", print)
    await busy(manager._dispatcher._threads, release)
    await manager.queue.publish("foo")
    assert await manager.process_next() is not None
    assert [event.attempts for event in store.in_status(EventStatus.PENDING)] == [0]


async def test_plain_handlers_run_side_by_side() -> None:
    store, meeting = WatchedStore(), threading.Barrier(4)
    await filled(store, 4)
    async with working(store, lambda event: meeting.wait(10), concurrency=4):
        await all_completed(store, 4)
