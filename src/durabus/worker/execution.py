"""Execution: call one handler, and make an outcome of whatever it returns or raises."""

from __future__ import annotations

import asyncio
import inspect
import sysconfig
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.clock import milliseconds_since, monotonic, perf_counter
from durabus.errors import ConfigurationError, InvalidPayloadError, PayloadDecodeError, UnsupportedByStore
from durabus.model.event import Event
from durabus.model.limits import seconds, stored_text
from durabus.model.payload import decode_as, encode_payload
from durabus.model.result import HandlerResult, Success, Suspended, TransientError, UnrecoverableError
from durabus.model.statuses import ResultStatus
from durabus.worker.handler import Context, Handler
from durabus.worker.steps import WAIT_FOR, StepError, holds
from durabus.worker.suspensions import warn_of_held_children
from durabus.worker.telemetry import SlowWarning
from durabus.worker.threads import Closed, HandlerThreads, NotStarted, ThreadCall, TimeoutExpired, call_with_event

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place_of(error: BaseException) -> str | None:
    """``file:line`` where the user's own code raised the error, or else where it was raised; None without traceback."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename)}:{error.lineno}"
    found = None
    step = error.__traceback__
    while step is not None:
        if found is None or _is_own(step) or not _is_own(found):
            found = step
        step = step.tb_next
    return None if found is None else f"{_short(found.tb_frame.f_code.co_filename)}:{found.tb_lineno}"


def _is_own(step: TracebackType) -> bool:
    file, module = step.tb_frame.f_code.co_filename, step.tb_frame.f_globals.get("__name__", "")
    return not (file.startswith(("<frozen ", *LIBRARIES)) or module.partition(".")[0] == "durabus")


def _short(file: str) -> str:
    """The path relative to the current directory, if it is below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file


MAX_TRACEBACK_CHARS = 8_192

OnError = Callable[[BaseException], None]


class HandlerOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one call. ``retry_after`` is the delay that the handler asked for.

    A handler that sleeps or snoozes is PENDING, without an error; ``kept`` are results to store with its release.
    """

    status: ResultStatus
    milliseconds: float
    value: Any = None
    error: str | None = None
    retry_after: float | None = None
    kept: tuple[HandlerResult, ...] = ()
    ended: float = 0.0
    """When the call of a handler that sleeps or snoozes ended, by the monotonic clock of this process."""

    @property
    def left(self) -> float:
        """Seconds until a handler that sleeps or snoozes goes on, less the time since its call ended."""
        return max((self.retry_after or 0.0) - (monotonic() - self.ended), 0.0)

    @property
    def is_suspended(self) -> bool:
        """Whether the handler goes on later and has not failed."""
        return self.status is ResultStatus.PENDING and self.error is None


async def execute(
    handler: Handler,
    context: Context,
    threads: HandlerThreads,
    on_error: OnError | None = None,
) -> HandlerOutcome:
    """Run the handler to its end, its timeout, or the cancellation of this task, and report to its breaker.

    ``on_error`` gets the exception of a failed call. The outcome keeps only the text, because the exception would keep
    every variable of the handler alive.

    Whatever the handler raises is a failed attempt, ``SystemExit`` too: an event that makes its handler exit would
    otherwise end one worker after another. Only ``KeyboardInterrupt`` on the main thread also ends the program.

    Raises ``NotStarted`` if the handler is a plain function and no thread was free for it.
    """
    started = perf_counter()
    try:
        if handler.is_async:
            coroutine = handler.call(context.event, context)
            # The first step runs without a timer. Most short handlers never suspend: nothing can interrupt them, and
            # a timer would cost more than the handler.
            try:
                waits_for = coroutine.send(None)
            except StopIteration as stop:
                returned = stop.value
            else:
                returned = await _rest_in_time(handler, context, coroutine, waits_for)
        else:
            returned = await in_thread(handler, context.event, call_with_event(handler, context, threads))
    except BaseException as raised:
        if gives_no_outcome(raised):
            handler.breaker.abandoned()
            raise
        outcome = from_end(handler, raised, milliseconds_since(started), on_error, began=context.event.picked_ts)
    else:
        outcome = from_return(returned, milliseconds_since(started), on_error, began=context.event.picked_ts)
    outcome = with_suspensions(handler, context, outcome, on_error)
    if handler.result_type is not None:
        outcome = checked(handler, outcome)
    if outcome.status is ResultStatus.SUCCEEDED:
        handler.breaker.succeeded(context.event.id)
    elif outcome.status is ResultStatus.UNRECOVERABLE or outcome.is_suspended:
        handler.breaker.abandoned()  # this is about the event, and says nothing of the handler's health
    else:
        handler.breaker.failed(context.event.id)
    return outcome


def gives_no_outcome(raised: BaseException) -> bool:
    """Whether the call never began, its coroutine was closed, or its task was cancelled.

    A handler may also raise ``CancelledError`` itself, while its task is not cancelled. That is an outcome.
    """
    if isinstance(raised, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(raised, NotStarted | Closed)


def from_end(
    handler: Handler,
    raised: BaseException,
    milliseconds: float,
    on_error: OnError | None = None,
    *,
    began: float | None,
) -> HandlerOutcome:
    """Return the outcome of a call that raised. ``began`` is explained at ``from_exception``."""
    if isinstance(raised, TimeoutExpired):
        error = TimeoutError(f"handler {handler.id} took longer than {handler.timeout:g} s")
        if on_error is not None:
            on_error(error)
        return HandlerOutcome(ResultStatus.TIMED_OUT, milliseconds, None, describe(error))
    if (
        isinstance(raised, KeyboardInterrupt)
        and handler.is_async
        and threading.current_thread() is threading.main_thread()
    ):
        # The user may have pressed Ctrl-C. The attempt has failed, and then the program gets the interrupt.
        asyncio.get_running_loop().call_soon(_interrupt)
    return from_exception(raised, milliseconds, on_error, began=began)


def _interrupt() -> None:
    raise KeyboardInterrupt


async def _rest_in_time(handler: Handler, context: Context, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    """Run the rest of a handler's coroutine within its timeout, and warn if it is slow."""
    if handler.slow_timeout is None:
        return await _rest(coroutine, waits_for, handler.timeout)
    with SlowWarning(context.event, handler.id, handler.slow_timeout):
        return await _rest(coroutine, waits_for, handler.timeout)


async def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
    """Run the rest of a coroutine after its first step. Raises ``TimeoutExpired`` if that takes too long."""
    scope = asyncio.timeout(timeout)
    try:
        async with scope:
            returned = await _Resumed(coroutine, waits_for)
    except TimeoutError:
        if scope.expired():
            raise TimeoutExpired from None
        raise
    if scope.expired():
        raise TimeoutExpired  # the handler ignored the cancellation and returned
    return returned


class _Resumed:
    """An awaitable for the rest of a coroutine whose first step has run and waits for ``waits_for``."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, waits_for = self._coroutine, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise Closed from None
                except BaseException as thrown:  # noqa: BLE001  (delegation: everything goes to the handler)
                    waits_for = coroutine.throw(thrown)
                else:
                    waits_for = coroutine.send(sent)
        except StopIteration as stop:
            return stop.value


async def in_thread(handler: Handler, event: Event, call: ThreadCall) -> Any:
    """Return what a plain function returns; if that is a coroutine, run it in what is left of the timeout."""
    if handler.slow_timeout is None:
        returned = await call.returned()
    else:
        with SlowWarning(event, handler.id, handler.slow_timeout):
            returned = await call.returned()
    if not inspect.iscoroutine(returned):
        return returned
    left = None
    if handler.timeout is not None and call.started is not None:
        left = max(handler.timeout - (perf_counter() - call.started), 0.0)
    return await run_in_time(returned, left)


async def run_in_time(coroutine: Coroutine[Any, Any, Any], timeout: float | None) -> Any:  # noqa: ASYNC109
    """Run a coroutine within ``timeout``. If Python closes it, this raises ``Closed``, not ``GeneratorExit``."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return await _rest(coroutine, waits_for, timeout)


def from_return(
    returned: Any, milliseconds: float, on_error: OnError | None = None, *, began: float | None
) -> HandlerOutcome:
    """Return the outcome of a call that returned: a value, or an error instead of raising it."""
    if returned is None:
        return HandlerOutcome(ResultStatus.SUCCEEDED, milliseconds)
    if isinstance(returned, Success):
        return HandlerOutcome(ResultStatus.SUCCEEDED, milliseconds, returned.value)
    if isinstance(returned, BaseException):
        return from_exception(returned, milliseconds, on_error, began=began)
    return HandlerOutcome(ResultStatus.SUCCEEDED, milliseconds, returned)


def checked(handler: Handler, outcome: HandlerOutcome) -> HandlerOutcome:
    """Make a value of the wrong type an unrecoverable error: no further attempt will change it. None is no value."""
    if outcome.status is not ResultStatus.SUCCEEDED or outcome.value is None:
        return outcome
    try:
        decode_as(encode_payload(outcome.value, "handler result"), handler.result_type)
    except (InvalidPayloadError, PayloadDecodeError) as error:
        text = f"ResultSchemaError: handler {handler.id} must return {handler.result_type!r}: {error}"
        return HandlerOutcome(ResultStatus.UNRECOVERABLE, outcome.milliseconds, None, stored_text(text))
    return outcome


def from_exception(
    raised: BaseException, milliseconds: float, on_error: OnError | None = None, *, began: float | None
) -> HandlerOutcome:
    """Return the outcome for an error that a handler raised or returned.

    ``began`` is the time by the clock of the store at which the call began: that of the claim, or somewhat later.
    """
    if asleep := _sleeps_in(raised):
        try:
            delay = min(_delay_of(one, (began or 0.0) + milliseconds / 1000) for one in asleep)
        except ConfigurationError as too_long:
            raised = too_long
        else:
            return HandlerOutcome(ResultStatus.PENDING, milliseconds, retry_after=delay, ended=monotonic())
    if on_error is not None:
        on_error(raised)
    text, value = describe(raised), way_of(raised)
    fatal = UnrecoverableError | PayloadDecodeError | UnsupportedByStore
    if isinstance(raised, fatal) or holds(raised, StepError):
        return HandlerOutcome(ResultStatus.UNRECOVERABLE, milliseconds, value, text)
    retry_after = raised.retry_after if isinstance(raised, TransientError) else None
    return HandlerOutcome(ResultStatus.TRANSIENT, milliseconds, value, text, retry_after)


def with_suspensions(
    handler: Handler, context: Context, outcome: HandlerOutcome, on_error: OnError | None
) -> HandlerOutcome:
    """Return the outcome of an attempt that ends in a sleep or wait with all of them. The first to end wakes the event.

    In the next attempt, each of the others goes on until its own end. If the handler returns instead, it has swallowed
    the exception of a sleep or wait. That is an unrecoverable error: what came after the sleep ran too early, and would
    run once more after each retry or wake-up.
    """
    steps = context.steps
    if steps is None or not steps.suspensions:
        return outcome
    if outcome.status is ResultStatus.SUCCEEDED:
        return from_exception(steps.swallowed(), outcome.milliseconds, on_error, began=None)
    if not outcome.is_suspended:
        return outcome
    if steps.held and steps.suspensions.count(WAIT_FOR) and not handler.has_held_children:
        handler.has_held_children = True
        warn_of_held_children(handler.id, context.event, steps.held)
    delay = steps.suspensions.goes_on_in(outcome.retry_after or 0.0)
    return replace(outcome, retry_after=delay, kept=steps.suspensions.kept, ended=monotonic())


def _sleeps_in(raised: BaseException) -> list[Suspended]:
    """The sleeps that a handler raised, alone or in a task group; none if anything else was raised beside them."""
    if isinstance(raised, BaseExceptionGroup):
        inside = [_sleeps_in(one) for one in raised.exceptions]
        return [one for some in inside for one in some] if all(inside) else []
    return [raised] if isinstance(raised, Suspended) else []


def _delay_of(asleep: Suspended, now: float) -> float:
    """Seconds until the handler goes on. The time by the clock of the store is ``now``, or later."""
    return asleep.delay if asleep.until is None else seconds(max(asleep.until - now, 0.0), "Snooze")


def describe(error: BaseException) -> str:
    """Return an exception as one text of bounded length. Without a text of its own it names where it was raised."""
    try:
        text = f"{type(error).__name__}: {str(error) or _without_text(error)}"
        if isinstance(error, BaseExceptionGroup):
            text += ": " + "; ".join(map(describe, error.exceptions))
    except Exception:  # noqa: BLE001  (an error whose text cannot be made is still an error)
        text = type(error).__name__
    return stored_text(text)


def _without_text(error: BaseException) -> str:
    place = place_of(error)
    return "(no text)" if place is None else f"(no text) raised at {place}"


def way_of(error: BaseException) -> dict[str, str] | None:
    """Return the traceback of an exception, from the handler's own code on; of a long one the newest part.

    It has source lines only and no values of variables, which may be secrets.
    """
    began = error.__traceback__
    while began is not None and began.tb_frame.f_globals.get("__name__", "").startswith("durabus.worker."):
        began = began.tb_next
    if began is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, began)
    except Exception:  # noqa: BLE001  (an error whose text cannot be made is still an error)
        lines = ["Traceback (most recent call last):\n", *traceback.format_tb(began), type(error).__name__]
    text = "".join(lines).encode(errors="backslashreplace").decode().replace("\0", "\\x00").rstrip("\n")
    return {"traceback": text if len(text) <= MAX_TRACEBACK_CHARS else "…" + text[-MAX_TRACEBACK_CHARS:]}


def result_of(handler: Handler, outcome: HandlerOutcome, attempts: int) -> HandlerResult:
    """Return the outcome as it is stored. A value that is not JSON is left out, with an error text; the work counts."""
    value_json, error = None, outcome.error
    if outcome.value is not None:
        try:
            value_json = encode_payload(outcome.value, "handler result")
        except InvalidPayloadError as not_json:
            error = f"result not stored: {not_json}"
    return HandlerResult(
        handler_id=handler.id,
        status=outcome.status,
        attempts=attempts,
        error=error,
        value_json=value_json,
        execution_time_ms=outcome.milliseconds,
    )
