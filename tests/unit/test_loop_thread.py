import asyncio
import threading
from collections.abc import Iterator

import pytest

from durabus.loop_thread import LoopThread


class Refused(Exception):
    pass


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test", Refused, ended="it has ended", not_started="not yet")
    yield thread
    thread.end(5)


async def where() -> str:
    return threading.current_thread().name


async def for_ever(begun: threading.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


def test_a_thread_calls_the_loop_thread_and_waits(thread: LoopThread) -> None:
    thread.start()
    thread.start()
    assert thread.submit(where()).result(5) == "test"
    assert not thread.is_current


async def test_another_event_loop_awaits_its_result(thread: LoopThread) -> None:
    thread.start()
    assert await thread.run(where()) == "test"


def test_calls_before_the_start_and_after_the_end_are_refused(thread: LoopThread) -> None:
    with pytest.raises(Refused, match="not yet"):
        thread.submit(where())
    with pytest.raises(Refused, match="not yet"):
        _ = thread.loop
    thread.start()
    thread.end(5)
    thread.end(5)
    with pytest.raises(Refused, match="it has ended"):
        thread.submit(where())
    with pytest.raises(Refused, match="it has ended"):
        thread.start()


async def test_a_call_that_the_end_cuts_off_raises(thread: LoopThread) -> None:
    thread.start()
    begun = threading.Event()
    call = asyncio.create_task(thread.run(for_ever(begun)))
    await asyncio.to_thread(begun.wait, 5)
    await asyncio.to_thread(thread.end, 5)
    with pytest.raises(Refused, match="it has ended"):
        await call


async def test_a_cancelled_caller_gets_its_cancellation_and_no_other_error(thread: LoopThread) -> None:
    thread.start()
    begun = threading.Event()
    call = asyncio.create_task(thread.run(for_ever(begun)))
    await asyncio.to_thread(begun.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_the_loop_thread_ends_after_its_last_work_and_a_repeat_waits_for_the_same_end(thread: LoopThread) -> None:
    done = []

    async def last() -> None:
        await asyncio.sleep(0)
        done.append(await where())

    thread.start()
    await asyncio.gather(thread.end_after(last()), thread.end_after(last()))
    assert done == ["test"]
    with pytest.raises(Refused, match="it has ended"):
        await thread.run(where())


async def test_the_loop_thread_ends_even_if_the_caller_gives_up(thread: LoopThread) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def last() -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, 5)

    thread.start()
    ending = asyncio.create_task(thread.end_after(last()))
    await asyncio.to_thread(begun.wait, 5)
    ending.cancel()
    go_on.set()
    await asyncio.gather(ending, return_exceptions=True)
    await asyncio.to_thread(thread.end, 5)
    assert thread.loop.is_closed()


async def test_the_error_of_the_last_work_is_raised_after_the_end(thread: LoopThread) -> None:
    async def last() -> None:
        raise ValueError("x")

    thread.start()
    with pytest.raises(ValueError, match="x"):
        await thread.end_after(last())
    assert thread.loop.is_closed()


async def test_an_end_without_a_start_does_nothing(thread: LoopThread) -> None:
    await thread.end_after(for_ever(threading.Event()))
    thread.begin_anew()
    thread.start()
    assert await thread.run(where()) == "test"
