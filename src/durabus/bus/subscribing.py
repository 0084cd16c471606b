"""The part of a bus that adds and removes handlers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from durabus.bus.new_events import result_type, type_name
from durabus.bus.options import BusOptions
from durabus.errors import ConfigurationError
from durabus.model.limits import Duration
from durabus.model.pattern import ANY
from durabus.model.policies import BreakerOption, RetryPolicy, breaker_policy
from durabus.model.statuses import EventMode
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.handler import DEFAULT_TIMEOUT, Handler, HandlerFunction, derived_id
from durabus.worker.missing_handlers import RemoteHandlers, Unhandled
from durabus.worker.telemetry import Metrics
from durabus.worker.threads import HandlerThreads

logger = logging.getLogger("durabus.bus")

F = TypeVar("F", bound=HandlerFunction)


class Subscribing(ABC):
    """A bus with handlers. A handler without a retry policy, slow timeout or breaker of its own gets the bus's."""

    def __init__(
        self, options: BusOptions, *, remote: RemoteHandlers, metrics: Metrics, emitter: Callable[..., Any]
    ) -> None:
        self._dispatcher = Dispatcher(
            threads=HandlerThreads(options.concurrency, f"durabus-{options.name}"),
            remote=remote,
            handler_mode=options.handler_mode,
            completion=options.completion,
            event_timeout=options.event_timeout,
            event_slow_timeout=options.event_slow_timeout,
            tracing=options.tracing,
            emitter=emitter,
            unhandled=Unhandled(options.unhandled, metrics),
        )
        self._options = options
        self._numbered: dict[str, int] = {}
        """The last number added to a derived id that several subscriptions share, by that id."""

    @abstractmethod
    def _before_subscriptions_change(self, verb: str | None) -> None:
        """Raise if the change is not possible here or now; ``verb`` names a change that a shut-down bus refuses."""

    @abstractmethod
    def _subscriptions_changed(self) -> None:
        """Announce the handlers after one was added or removed."""

    def subscribe(
        self,
        pattern: str | type | HandlerFunction = ANY,
        handler: HandlerFunction | None = None,
        *,
        id: str | None = None,  # noqa: A002  (the word users know)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        slow_timeout: Duration | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        breaker: BreakerOption = None,
        batch: int | None = None,
        within: Duration | None = None,
    ) -> str:
        """Call ``handler`` for every event whose type the pattern covers; ``subscribe(handler)`` takes all events.

        For an event class with an ``event_result_type``, the handler must return a value of that type.

        ``retry`` and ``breaker`` replace the whole policy, or, as a mapping, only the fields it names;
        ``breaker=False`` switches it off. Returns the subscription's id: ``id`` if one is given, else one derived from
        pattern and function, equal on every node that runs the same code.

        With ``batch``, the handler gets a list of up to ``batch`` events. The call begins when that number waits, or
        ``within`` seconds after the first (0.1 if not given). Returning None means success for all; a mapping from
        ``event_id`` gives values or errors; ``BatchFailed`` names those that failed; any other error fails all.
        """
        self._before_subscriptions_change("subscribe")
        glob, function = pattern_and_function(pattern, handler)
        subscription = Handler(
            handler_id=id if id is not None else self._free_id(glob, function),
            pattern=glob,
            function=function,
            timeout=timeout,
            slow_timeout=self._options.handler_slow_timeout if slow_timeout is None else slow_timeout,
            result_type=result_type(pattern) if isinstance(pattern, type) else None,
            retry=self._options.retry.merged(retry),
            breaker=breaker_policy(breaker, self._options.breaker),
            batch=batch,
            within=within,
        )
        if subscription.batch is not None and self._options.mode is not EventMode.PARALLEL:
            raise ConfigurationError(
                f"batch={batch!r} on bus {self._options.name!r}, whose mode {self._options.mode.value!r} runs one "
                "event at a time: use mode='parallel', or a handler of single events"
            )
        self._dispatcher.add(subscription)
        self._subscriptions_changed()
        return subscription.id

    @overload
    def on(self, pattern: F) -> F: ...

    @overload
    def on(
        self,
        pattern: str | type = ANY,
        *,
        id: str | None = None,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        slow_timeout: Duration | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        breaker: BreakerOption = None,
        batch: int | None = None,
        within: Duration | None = None,
    ) -> Callable[[F], F]: ...

    def on(
        self,
        pattern: Any = ANY,
        *,
        id: str | None = None,  # noqa: A002  (the word users know)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        slow_timeout: Duration | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        breaker: BreakerOption = None,
        batch: int | None = None,
        within: Duration | None = None,
    ) -> Any:
        """``subscribe`` as a decorator: ``@bus.on("order.*")``, or ``@bus.on`` for all events."""

        def decorate(handler: HandlerFunction) -> HandlerFunction:
            self.subscribe(
                ANY if handler is pattern else pattern,
                handler,
                id=id,
                timeout=timeout,
                slow_timeout=slow_timeout,
                retry=retry,
                breaker=breaker,
                batch=batch,
                within=within,
            )
            return handler

        return decorate if isinstance(pattern, str | type) else decorate(pattern)

    def unsubscribe(self, subscription_id: str) -> bool:
        """Stop calling a handler. False if there is no such subscription."""
        self._before_subscriptions_change(None)
        removed = self._dispatcher.remove(subscription_id) is not None
        if removed:
            self._numbered.clear()  # its number is free again
            self._subscriptions_changed()
        return removed

    def off(self, pattern: str | type = ANY, handler: HandlerFunction | str | None = None) -> int:
        """Stop calling a handler (a function, or a subscription's id) for ``pattern``; None: all of that pattern.

        Returns the number of subscriptions removed.
        """
        glob = pattern_of(pattern)
        found = [
            known.id
            for known in self._dispatcher.handlers
            if known.pattern == glob and (handler is None or handler in (known.id, known.function))
        ]
        return sum(self.unsubscribe(subscription_id) for subscription_id in found)

    def _free_id(self, pattern: str, handler: HandlerFunction) -> str:
        """Return an id that is free. Equal subscriptions get a number by their order, which every node shares."""
        wanted = derived_id(pattern, handler)
        if wanted not in self._dispatcher:
            return wanted
        number = self._numbered.get(wanted, 1) + 1
        while (chosen := f"{wanted}#{number}") in self._dispatcher:
            number += 1
        self._numbered[wanted] = number
        logger.warning(
            "subscription %r differs from others of that name only by the order of subscribing: give it an id=, or its "
            "results may be taken for another handler's when that order changes",
            chosen,
        )
        return chosen


def pattern_and_function(
    pattern: str | type | HandlerFunction, handler: HandlerFunction | None
) -> tuple[str, HandlerFunction]:
    """Return pattern and handler for both ways to subscribe: with a pattern, or to all events."""
    if handler is None:
        if isinstance(pattern, str | type):
            raise ConfigurationError(f"subscribe({pattern!r}) has no handler: call subscribe(pattern, handler)")
        return ANY, pattern
    return pattern_of(pattern), handler


def pattern_of(pattern: object) -> str:
    """Return the pattern for a string or an event class."""
    if isinstance(pattern, str):
        return pattern
    if isinstance(pattern, type):
        return type_name(pattern)
    raise ConfigurationError(f"pattern={pattern!r}: must be a string such as 'user.*', or an event class")
