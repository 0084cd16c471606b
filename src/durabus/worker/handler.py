"""A handler: the user's function, how to call it, and when to stop calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from durabus.errors import ConfigurationError
from durabus.model.breaker import BreakerPolicy
from durabus.model.event import Event
from durabus.model.limits import Duration, check_name, seconds
from durabus.model.pattern import check_pattern
from durabus.model.payload import decode_as
from durabus.model.retry import RetryPolicy
from durabus.worker.breaker import Breaker
from durabus.worker.context import Context

DEFAULT_TIMEOUT = 30.0

HandlerFunction = Callable[..., Any]
Call = Callable[[Event, Context], Any]

_SIGNATURES: WeakKeyDictionary[FunctionType, tuple[Any, bool]] = WeakKeyDictionary()
"""What was read from a function's signature: one function may be subscribed under thousands of patterns."""


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
    ) -> None:
        self.id = check_name(handler_id, "handler id")
        self.pattern = check_pattern(pattern)
        self.timeout = None if timeout is None else seconds(timeout, "timeout", allow_zero=False)
        slow = None if slow_timeout is None else seconds(slow_timeout, "slow_timeout", allow_zero=False)
        # A warning that would come no earlier than the end is none.
        self.slow_timeout = None if slow is None or (self.timeout is not None and self.timeout <= slow) else slow
        self.result_type = result_type
        self.retry = retry
        self.breaker = Breaker(breaker)
        self.function = function
        self.is_async = is_async_callable(function)
        self.call = _caller(function)


def is_async_callable(function: HandlerFunction) -> bool:
    """Whether calling it gives a coroutine: async functions, partials of them, objects with an async ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return not isinstance(function, FunctionType) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def derived_id(pattern: str, function: HandlerFunction) -> str:
    """The same code under the same pattern has the same id on every node."""
    while isinstance(function, partial):
        function = function.func
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{pattern}@{module}.{name}"[:200]


def _caller(function: HandlerFunction) -> Call:
    """How to hand an event to the function: as ``Event``, or as the payload type that its first argument asks for."""
    if not callable(function):
        raise ConfigurationError(f"handler {function!r} is not callable")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"handler {function!r} has a yield in it: calling it would run none of it; return instead"
        )
    signature = _SIGNATURES.get(function) if isinstance(function, FunctionType) else None
    if signature is None:
        signature = _signature(function)
        if isinstance(function, FunctionType):
            _SIGNATURES[function] = signature
    first, takes_context = signature
    if first is Event:
        if takes_context:
            return function
        return lambda event, _context: function(event)
    if takes_context:
        return lambda event, context: function(decode_as(event.payload_json, first), context)
    return lambda event, _context: function(decode_as(event.payload_json, first))


def _signature(function: HandlerFunction) -> tuple[Any, bool]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Event, False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not positional and not variadic:
        raise ConfigurationError(f"handler {function!r} takes no argument: it must accept the event or its payload")
    needed = [p for p in positional if p.default is p.empty]
    if len(needed) > 2:  # noqa: PLR2004  (event and context)
        raise ConfigurationError(f"handler {function!r} needs {len(needed)} arguments: at most (event, ctx) are given")
    hints = _hints(function) if any(p.annotation is not p.empty for p in positional) else {}
    takes_context = len(needed) == 2 or any(hints.get(p.name) is Context for p in positional[1:2])  # noqa: PLR2004
    first = hints.get(positional[0].name, Event) if positional else Event
    return Event if first in (Any, object, inspect.Parameter.empty) else first, takes_context


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
