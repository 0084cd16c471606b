"""A handler: the user's function, how to call it, its timeout, retry policy and breaker, and the context it gets."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from durabus.clock import perf_counter
from durabus.errors import ConfigurationError
from durabus.model.event import Event
from durabus.model.limits import Duration, check_name, seconds
from durabus.model.pattern import check_pattern
from durabus.model.payload import decode_as
from durabus.model.policies import BreakerPolicy, RetryPolicy
from durabus.model.wait import Scalar
from durabus.worker.batch import BatchContext, batch_options, item_type
from durabus.worker.breaker import Breaker
from durabus.worker.children.emissions import emitting, is_alone
from durabus.worker.steps import SEPARATOR, Retry, Steps, Tries

DEFAULT_TIMEOUT = 30.0

STARTED = ("__main__", "__mp_main__")
"""Python's names for the module that it was started with, also in a process that multiprocessing spawned."""


class HandlerContext(msgspec.Struct, frozen=True, gc=False):
    """What the contexts of async and of plain handlers share."""

    event: Event
    worker_id: str
    emitter: Callable[..., Any] | None = None
    """``emit`` of the bus that runs the handler; None if no bus does."""
    steps: Steps | None = None
    """The durable steps of the handler; None if neither a bus nor a manager runs it."""

    @property
    def fence(self) -> int:
        """The number to pass to outside systems: they must refuse a smaller one than they have seen for this event."""
        return self.event.fence

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.event.attempts

    def emit(self, event_type: str | object, payload: Any = None, **options: Any) -> Any:
        """Emit a child of this event as ``EventBus.emit`` does; returns its handle.

        Raises ``LeaseLost`` if the attempt has ended.
        """
        if self.emitter is None:
            raise ConfigurationError(f"ctx.emit({event_type!r}): this handler is not run by an EventBus")
        if self.steps is not None and not is_alone(options):
            self.steps.refuse_late()
        return self.emitter(event_type, payload, **options)

    def _own_steps(self, verb: str) -> Steps:
        if self.steps is None:
            raise ConfigurationError(f"ctx.{verb}: this handler is run neither by an EventBus nor by an EventManager")
        return self.steps


class Context(HandlerContext, frozen=True, gc=False):
    """The second argument of an async handler that takes one."""

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: Retry = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (it bounds each try of the step)
        **kwargs: Any,
    ) -> Any:
        """Call the function once for this event, keep its value, and return it.

        The value is in the store before this returns. After a retry, a crash, a takeover or a requeue, the step of the
        same name and arguments returns the kept value and does not call the function again. The value must be JSON of
        256 KiB at most. The second step of a name is kept as ``name#2``, and so on. ``retry`` tries this step again
        before the handler fails; ``timeout`` bounds each try of an async function. A plain function runs as if the
        handler itself called it. The function must not sleep, wait for an event or snooze: that ends the event with
        ``StepError``.
        """
        steps = self._own_steps("step")
        step = steps.begin(name, function, (args, kwargs))
        if step.memo is not None:
            return step.memo.value
        tries, began, ended = Tries(step.key, retry, timeout), perf_counter(), steps.running()
        try:
            while True:
                try:
                    with emitting(steps.run(step)) as run:
                        value = await tries.awaited(function(*args, **kwargs))
                    break
                except Exception as error:  # noqa: BLE001  (the policy of the step decides)
                    pause = tries.pause_after(error)
                await asyncio.sleep(pause)
        except BaseException as error:
            steps.failed(step, error)
            raise
        else:
            return await steps.keep(step, value, run, attempts=tries.attempt, began=began)
        finally:
            ended()

    async def sleep(self, delay: Duration) -> None:
        """Give slot and claim back, and go on after ``delay``: the handler is called again, and its kept steps return.

        The event keeps its attempt, and a deploy or a crash in between does not matter.
        """
        await self._own_steps("sleep").sleep(seconds(delay, "delay"))

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep until an instant with a time zone, by the clock of the store. If it is past, this returns at once."""
        await self._own_steps("sleep_until").sleep_until(instant)

    async def wait_for(
        self,
        event_type: str,
        *,
        where: Mapping[str, Scalar] | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (the event waits in the store, not this coroutine)
    ) -> Event | None:
        """Give slot and claim back, and go on when an event of this type is published on the same bus.

        The event must have been stored after the one that is handled, also if that was before this call. Its payload
        must have equal fields for every entry of ``where``. Returns the first such event, as it was published, or None
        if none came within ``timeout``. A retry, a crash, a takeover or a requeue returns the same again.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        return await self._own_steps("wait_for").wait_for(event_type, where, limit)


class SyncContext(HandlerContext, frozen=True, gc=False):
    """The second argument of a plain handler that takes one: the verbs of ``Context``, without ``await``."""

    loop: asyncio.AbstractEventLoop | None = None

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: Retry = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Any:
        """Do what ``Context.step`` does. A plain function runs in the thread of the handler."""
        steps = self._own_steps("step")
        ended = steps.running()  # before the step begins: the attempt may end at this very moment
        try:
            step = steps.begin(name, function, (args, kwargs))
            if step.memo is not None:
                return step.memo.value
            tries, began = Tries(step.key, retry, timeout), perf_counter()
            try:
                while True:
                    try:
                        with emitting(steps.run(step)) as run:
                            value = function(*args, **kwargs)
                            if inspect.isawaitable(value):
                                value = self._in_loop(tries.awaited(value))
                        break
                    except Exception as error:  # noqa: BLE001  (the policy of the step decides)
                        pause = tries.pause_after(error)
                    self._in_loop(asyncio.sleep(pause))
            except BaseException as error:
                steps.failed(step, error)
                raise
            return self._in_loop(steps.keep(step, value, run, attempts=tries.attempt, began=began))
        finally:
            ended()

    def sleep(self, delay: Duration) -> None:
        """Do what ``Context.sleep`` does."""
        self._in_loop(self._own_steps("sleep").sleep(seconds(delay, "delay")))

    def sleep_until(self, instant: datetime) -> None:
        """Do what ``Context.sleep_until`` does."""
        self._in_loop(self._own_steps("sleep_until").sleep_until(instant))

    def wait_for(
        self, event_type: str, *, where: Mapping[str, Scalar] | None = None, timeout: Duration | None = None
    ) -> Event | None:
        """Do what ``Context.wait_for`` does."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        found: Event | None = self._in_loop(self._own_steps("wait_for").wait_for(event_type, where, limit))
        return found

    def _in_loop(self, verb: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the event loop of the worker, and wait for it in this thread."""
        try:
            is_in_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_in_loop = False
        if self.loop is None or is_in_loop:
            verb.close()
            raise ConfigurationError(
                "a verb of SyncContext was called inside the event loop, which would wait for itself: call it in the "
                "thread of the handler, and not in an async function of a step"
            )
        return asyncio.run_coroutine_threadsafe(verb, self.loop).result()


HandlerFunction = Callable[..., Any]
AdaptedFunction = Callable[[Any, Any], Any]
"""A handler function that takes the event and its context, whatever arguments the user's function has.

That of a batch handler takes a list and its context.
"""


class Signature(NamedTuple):
    """The arguments of a function, and whether it is async."""

    first: Any
    """The type of the first argument: ``Event``, or a type of payload."""
    takes_context: bool
    is_async: bool
    hints: tuple[Any, Any] = (None, None)
    """The type hints of the first two arguments; None if there is none."""


_SIGNATURES: WeakKeyDictionary[FunctionType, Signature] = WeakKeyDictionary()
"""The signatures of plain functions: a program may subscribe one function under thousands of patterns."""


class Handler:
    """One subscription: a pattern and a function under a stable id."""

    def __init__(
        self,
        *,
        handler_id: str,
        pattern: str,
        function: HandlerFunction,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        retry: RetryPolicy,
        breaker: BreakerPolicy | None,
        slow_timeout: Duration | None = None,
        result_type: Any = None,
        batch: int | None = None,
        within: Duration | None = None,
    ) -> None:
        self.id = check_name(handler_id, "handler id")
        if SEPARATOR in handler_id:
            raise ConfigurationError(
                f"handler id={handler_id!r}: {SEPARATOR!r} separates an id from the name of a step"
            )
        self.pattern = check_pattern(pattern)
        self.timeout = None if timeout is None else seconds(timeout, "timeout", allow_zero=False)
        slow = None if slow_timeout is None else seconds(slow_timeout, "slow_timeout", allow_zero=False)
        # No warning is needed if the timeout comes first.
        self.slow_timeout = None if slow is None or (self.timeout is not None and self.timeout <= slow) else slow
        self.result_type = result_type
        self.retry = retry
        self.function = function
        self._breaker_policy = breaker
        signature = _signature_of(function)
        self.is_async = signature.is_async
        self.batch = batch_options(batch, within)
        """The size of its batches, and how long they wait; None if the handler gets one event at a time."""
        self.item_type = Event if self.batch is None else item_type(function, signature.hints[0])
        self.has_held_children = False
        """Whether a warning has said that it waits for an event while events that it emitted are not stored."""
        self.takes_context = signature.takes_context and self.batch is None
        self.call = _caller(function, signature) if self.batch is None else _batch_caller(function, signature)

    @cached_property
    def breaker(self) -> Breaker:
        """The breaker, created with the first event: a program may subscribe 100,000 handlers and call few of them."""
        return Breaker(self._breaker_policy)


def is_async_callable(function: HandlerFunction) -> bool:
    """Whether a call returns a coroutine: async functions, partials of them, objects with an async ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def derived_id(pattern: str, function: HandlerFunction) -> str:
    """Return the id for a function and a pattern; it is the same on every node that runs the same code."""
    while isinstance(function, partial):
        function = function.func
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{pattern}@{_importable(module)}.{name}"[:200]


def _importable(module: str) -> str:
    """Return the module's name; of the module that Python was started with, the name under which others import it."""
    if module not in STARTED:
        return module
    started = sys.modules.get(module)
    spec, file = getattr(started, "__spec__", None), getattr(started, "__file__", None)
    if spec is not None:
        return str(spec.name)  # python -m store.shop
    return Path(file).stem if file else module


def _caller(function: HandlerFunction, signature: Signature) -> AdaptedFunction:
    """Return a call that passes the event as ``Event``, or as the payload type of the function's first argument."""
    first = signature.first
    if first == list[Event] or signature.hints[1] is BatchContext:
        raise ConfigurationError(
            f"handler {function!r} is written for batches: subscribe it with batch=, such as batch=100, within=0.5"
        )
    if first is Event:
        if signature.takes_context:
            return function
        return lambda event, _context: function(event)
    if signature.takes_context:
        return lambda event, context: function(decode_as(event.newest_payload_json, first), context)
    return lambda event, _context: function(decode_as(event.newest_payload_json, first))


def _batch_caller(function: HandlerFunction, signature: Signature) -> AdaptedFunction:
    """Return a call that passes a list, and the context of the batch if the function takes one."""
    if signature.hints[1] in (Context, SyncContext):
        raise ConfigurationError(
            f"handler {function!r} has batch=, so it gets a BatchContext, not a {signature.hints[1].__name__}: durable "
            "steps and sleep belong to the handler of one event"
        )
    return function if signature.takes_context else lambda items, _context: function(items)


def _signature_of(function: HandlerFunction) -> Signature:
    if not isinstance(function, FunctionType):
        return _read_signature(function)
    known = _SIGNATURES.get(function)
    if known is None:
        known = _SIGNATURES[function] = _read_signature(function)
    return known


def _read_signature(function: HandlerFunction) -> Signature:
    if not callable(function):
        raise ConfigurationError(f"handler {function!r} is not callable")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"handler {function!r} has a yield in it: calling it would run none of it; return instead"
        )
    is_async = is_async_callable(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Signature(Event, takes_context=False, is_async=is_async)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not positional and not variadic:
        raise ConfigurationError(f"handler {function!r} takes no argument: it must accept the event or its payload")
    needed = [p for p in positional if p.default is p.empty]
    if len(needed) > 2:  # noqa: PLR2004  (event and context)
        raise ConfigurationError(f"handler {function!r} needs {len(needed)} arguments: at most (event, ctx) are given")
    hints = _hints(function)
    given, second = (*(hints.get(p.name) for p in positional[:2]), None, None)[:2]
    takes_context = len(needed) == 2 or second in (Context, SyncContext, BatchContext)  # noqa: PLR2004
    first = hints.get(positional[0].name, Event) if positional else Event
    first = Event if first in (Any, object, inspect.Parameter.empty) else first
    return Signature(first, takes_context, is_async, (given, second))


def _hints(function: HandlerFunction) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return get_type_hints(target)
    except (NameError, TypeError, AttributeError) as error:
        if isinstance(error, NameError):
            raise ConfigurationError(
                f"handler {function!r}: the type hint {error.name!r} cannot be found from its module; "
                "define the payload type at module level"
            ) from error
        return {}
