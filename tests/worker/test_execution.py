"""One handler on one event."""

import asyncio
import functools
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from tests.worker.support import make_event, make_handler

from durabus import Event
from durabus.model.result import Snooze, Success, TransientError, UnrecoverableError
from durabus.model.statuses import ResultStatus
from durabus.worker.execution import HandlerOutcome, describe, execute, result_of
from durabus.worker.handler import Context, is_async_callable
from durabus.worker.threads import HandlerThreads

Run = Callable[..., Awaitable[HandlerOutcome]]


class Stop(BaseException):
    """An error that is no ``Exception``, as some libraries have them."""


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    threads = HandlerThreads(2)

    async def run(function: Callable[..., Any], limit: float | None = 5.0) -> HandlerOutcome:
        return await execute(make_handler(function, timeout=limit), Context(make_event(), "w:1"), threads)

    yield run
    threads.shutdown()


def without_place(outcome: HandlerOutcome) -> str:
    return (outcome.error or "").partition(" raised at ")[0]


@pytest.mark.parametrize(
    ("returned", "status", "value"),
    [
        (None, ResultStatus.SUCCEEDED, None),
        (3, ResultStatus.SUCCEEDED, 3),
        (False, ResultStatus.SUCCEEDED, False),
        (Success(), ResultStatus.SUCCEEDED, None),
        (Success(3), ResultStatus.SUCCEEDED, 3),
        (TransientError("busy"), ResultStatus.TRANSIENT, None),
        (UnrecoverableError("never"), ResultStatus.UNRECOVERABLE, None),
        (ValueError("returned"), ResultStatus.TRANSIENT, None),
    ],
)
async def test_what_a_handler_returns_is_its_outcome(
    run: Run, returned: object, status: ResultStatus, value: object
) -> None:
    async def in_loop(event: Event) -> object:
        return returned

    def in_thread(event: Event) -> object:
        return returned

    for handler in (in_loop, in_thread):
        outcome = await run(handler)
        assert (outcome.status, outcome.value) == (status, value)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TransientError("busy"), ResultStatus.TRANSIENT),
        (UnrecoverableError("never"), ResultStatus.UNRECOVERABLE),
        (KeyError("sku"), ResultStatus.TRANSIENT),
        (RecursionError("deep"), ResultStatus.TRANSIENT),
        (TimeoutError("of the handler"), ResultStatus.TRANSIENT),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), ResultStatus.TRANSIENT),
        (BaseExceptionGroup("two", [GeneratorExit(), ValueError("b")]), ResultStatus.TRANSIENT),
        (GeneratorExit("by hand"), ResultStatus.TRANSIENT),
        (SystemExit(3), ResultStatus.TRANSIENT),
        (Stop("of a library"), ResultStatus.TRANSIENT),
    ],
    ids=repr,
)
@pytest.mark.parametrize("limit", [None, 5.0])
async def test_what_a_handler_raises_is_its_outcome(
    run: Run, error: BaseException, status: ResultStatus, limit: float | None
) -> None:
    async def at_once(event: Event) -> None:
        raise error

    async def later(event: Event) -> None:
        await asyncio.sleep(0)
        raise error

    def in_thread(event: Event) -> None:
        raise error

    for handler in (at_once, later, in_thread):
        outcome = await run(handler, limit)
        assert (outcome.status, outcome.error) == (status, describe(error))


@pytest.mark.parametrize(("instant", "delay"), [(1_030.0, 30.0), (1_000.0, 0.0), (-5_000.0, 0.0)])
async def test_a_snooze_until_an_instant_is_a_delay_by_the_clock_of_the_store(instant: float, delay: float) -> None:
    async def handle(event: Event) -> object:
        return Snooze(datetime.fromtimestamp(instant, timezone(timedelta(hours=2))))

    threads = HandlerThreads(1)
    event = replace(make_event(), picked_ts=1_000.0)
    outcome = await execute(make_handler(handle), Context(event, "w:1"), threads)
    threads.shutdown()
    assert outcome.is_suspended
    assert outcome.retry_after == pytest.approx(delay, abs=0.5)
    assert outcome.retry_after is not None
    assert 0 <= outcome.retry_after <= delay


async def test_a_snooze_of_more_than_a_hundred_years_is_a_failed_attempt(run: Run) -> None:
    async def handle(event: Event) -> None:
        raise Snooze(datetime.max.replace(tzinfo=UTC))

    outcome = await run(handle)
    assert outcome.status is ResultStatus.TRANSIENT
    assert "a hundred years" in (outcome.error or "")


async def test_a_handler_that_takes_too_long_is_timed_out(run: Run) -> None:
    async def endless(event: Event) -> None:
        await asyncio.Event().wait()

    outcome = await run(endless, 0.01)
    assert outcome.status is ResultStatus.TIMED_OUT
    assert outcome.milliseconds >= 10


async def test_the_timeout_counts_over_all_suspensions(run: Run) -> None:
    async def endless(event: Event) -> None:
        for _ in range(10_000):
            await asyncio.sleep(0.001)

    assert (await run(endless, 0.02)).status is ResultStatus.TIMED_OUT


async def test_a_handler_that_times_out_may_clean_up(run: Run) -> None:
    steps: list[str] = []

    async def careful(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    assert (await run(careful, 0.01)).status is ResultStatus.TIMED_OUT
    assert steps == ["cleaned up"]


async def test_a_handler_that_swallows_its_timeout_is_timed_out_all_the_same(run: Run) -> None:
    async def stubborn(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    assert (await run(stubborn, 0.01)).status is ResultStatus.TIMED_OUT


async def test_a_handler_that_raises_an_error_on_its_timeout_fails_with_that_error(run: Run) -> None:
    async def complaining(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise UnrecoverableError("half done") from None

    assert (await run(complaining, 0.01)).error == "UnrecoverableError: half done"


async def test_a_timeout_inside_the_handler_is_the_handlers_own_affair(run: Run) -> None:
    async def patient(event: Event) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "went on"
        return "never"

    outcome = await run(patient, 5.0)
    assert (outcome.status, outcome.value) == (ResultStatus.SUCCEEDED, "went on")


async def test_a_timeout_inside_the_handler_that_escapes_is_a_failure_and_not_ours(run: Run) -> None:
    async def impatient(event: Event) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    outcome = await run(impatient, 5.0)
    assert (outcome.status, without_place(outcome)) == (ResultStatus.TRANSIENT, "TimeoutError: (no text)")


async def test_our_timeout_goes_through_a_longer_one_inside_the_handler(run: Run) -> None:
    async def nested(event: Event) -> None:
        async with asyncio.timeout(5.0):
            await asyncio.Event().wait()

    assert (await run(nested, 0.01)).status is ResultStatus.TIMED_OUT


async def test_a_task_group_inside_the_handler_works(run: Run) -> None:
    async def grouped(event: Event) -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(3)]
        return sum(task.result() for task in tasks)

    assert (await run(grouped)).value == 3


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_an_anyio_scope_inside_the_handler_is_the_handlers_own_affair(run: Run, limit: float | None) -> None:
    async def patient(event: Event) -> str:
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        await asyncio.sleep(0)
        return "went on"

    outcome = await run(patient, limit)
    assert (outcome.status, outcome.value) == (ResultStatus.SUCCEEDED, "went on")


async def test_our_timeout_goes_through_an_anyio_task_group_inside_the_handler(run: Run) -> None:
    async def nested(event: Event) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)

    assert (await run(nested, 0.01)).status is ResultStatus.TIMED_OUT


@pytest.mark.parametrize("limit", [None, 5.0])
@pytest.mark.parametrize("first", ["at once", "later"])
async def test_a_handler_that_raises_a_cancellation_of_its_own_has_failed(
    run: Run, limit: float | None, first: str
) -> None:
    async def handler(event: Event) -> None:
        if first == "later":
            await asyncio.sleep(0)
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    task = asyncio.ensure_future(run(handler, limit))
    await asyncio.wait({task})
    assert not task.cancelled(), "it passed for a cancellation of the worker"
    outcome = task.result()
    assert outcome.status in (ResultStatus.TRANSIENT, ResultStatus.CANCELLED)
    assert outcome.error is not None
    assert outcome.error.startswith("CancelledError")


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_cancelling_the_task_from_outside_goes_through(run: Run, limit: float | None) -> None:
    entered = asyncio.Event()

    async def endless(event: Event) -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(run(endless, limit))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interrupt_in_a_thread_is_a_failed_attempt(run: Run) -> None:
    def handler(event: Event) -> None:
        raise KeyboardInterrupt

    assert without_place(await run(handler)) == "KeyboardInterrupt: (no text)"


def test_an_interrupt_on_the_main_thread_is_a_failed_attempt_and_then_ends_the_program() -> None:
    outcomes: list[HandlerOutcome] = []

    async def handler(event: Event) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        outcomes.append(await execute(make_handler(handler), Context(make_event(), "w:1"), HandlerThreads(1)))
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert [without_place(outcome) for outcome in outcomes] == ["KeyboardInterrupt: (no text)"]


def test_an_interrupt_on_a_loop_in_another_thread_is_a_failed_attempt_only() -> None:
    outcomes: list[HandlerOutcome] = []

    async def handler(event: Event) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        outcomes.append(await execute(make_handler(handler), Context(make_event(), "w:1"), HandlerThreads(1)))
        await asyncio.sleep(0)
        outcomes.append(await execute(make_handler(handler), Context(make_event(), "w:1"), HandlerThreads(1)))

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join(10)
    assert [without_place(outcome) for outcome in outcomes] == ["KeyboardInterrupt: (no text)"] * 2


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_has_not_failed_if_its_loop_is_gone(run: Run, *, in_thread: bool) -> None:
    """When a coroutine is closed, Python throws ``GeneratorExit`` into it: it must not go on."""
    release = threading.Event()

    async def in_loop(event: Event) -> None:
        await asyncio.Event().wait()

    def waits(event: Event) -> None:
        release.wait(10)

    running = execute(make_handler(waits if in_thread else in_loop), Context(make_event(), "w:1"), HandlerThreads(1))
    running.send(None)
    running.close()
    release.set()


async def test_a_plain_function_that_raises_stop_iteration_fails_like_any_other(run: Run) -> None:
    def handler(event: Event) -> int:
        empty: list[int] = []
        return next(iter(empty))

    async with asyncio.timeout(20):
        outcome = await run(handler, None)
    assert outcome.status is ResultStatus.TRANSIENT
    assert "StopIteration" in (outcome.error or "")


async def test_an_async_handler_that_raises_stop_iteration_fails_like_any_other(run: Run) -> None:
    async def handler(event: Event) -> int:
        empty: list[int] = []
        return next(iter(empty))

    assert (await run(handler)).status is ResultStatus.TRANSIENT


async def test_a_value_that_is_not_json_is_left_out_and_does_not_undo_the_work(run: Run) -> None:
    async def handler(event: Event) -> object:
        return object()

    outcome = await run(handler)
    result = result_of(make_handler(handler), outcome, 1)
    assert (result.status, result.value_json) == (ResultStatus.SUCCEEDED, None)
    assert result.error is not None
    assert result.error.startswith("result not stored: ")


def test_an_error_is_described_in_bounded_and_valid_text() -> None:
    assert describe(ValueError("x")) == "ValueError: x"
    assert len(describe(ValueError("x" * 100_000))) < 8_500
    assert describe(ValueError("\udc80")).encode() == b"ValueError: \\udc80"
    assert describe(ValueError("a\0b")) == "ValueError: a\\x00b", "some stores cannot hold a NUL"


async def test_an_error_without_a_text_says_where_it_was_raised(run: Run) -> None:
    class ReadTimeout(Exception):
        pass

    async def handler(event: Event) -> None:
        raise ReadTimeout

    async def calls_a_library(event: Event) -> None:
        queue.Queue[int]().get_nowait()

    line = handler.__code__.co_firstlineno + 1
    assert (await run(handler)).error == f"ReadTimeout: (no text) raised at tests/worker/test_execution.py:{line}"
    line = calls_a_library.__code__.co_firstlineno + 1
    described = (await run(calls_a_library)).error or ""
    assert described.endswith(f"raised at tests/worker/test_execution.py:{line}"), described
    assert describe(ReadTimeout()) == "ReadTimeout: (no text)"


def test_an_error_that_cannot_be_shown_is_described_by_its_type() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot be shown")

    assert "Broken" in describe(Broken())


def test_async_callables_are_distinguished_from_plain_ones() -> None:
    async def coroutine(event: Event) -> None: ...
    def plain(event: Event) -> None: ...

    class AsyncObject:
        async def __call__(self, event: Event) -> None: ...

        async def method(self, event: Event) -> None: ...

    @functools.wraps(coroutine)
    async def wrapped(event: Event) -> None: ...

    for function in (coroutine, AsyncObject(), AsyncObject().method, functools.partial(coroutine), wrapped):
        assert is_async_callable(function)
    plain_ones: list[Callable[..., Any]] = [plain, functools.partial(plain), print, lambda event: None]
    assert not any(is_async_callable(function) for function in plain_ones)


async def test_a_plain_wrapper_around_an_async_function_is_called_as_what_it_is(run: Run) -> None:
    async def inner(event: Event) -> int:
        return 1

    @functools.wraps(inner)
    def wrapper(event: Event) -> int:
        return 2

    outcome = await run(wrapper)
    assert (outcome.status, outcome.value) == (ResultStatus.SUCCEEDED, 2)
