"""Handlers come and go: the part of a bus that keeps them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from durabus.bus.naming import pattern_and_function, pattern_of, result_type
from durabus.model.limits import Duration
from durabus.model.pattern import ANY
from durabus.model.retry import RetryPolicy
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.handler import DEFAULT_TIMEOUT, Handler, HandlerFunction, derived_id

logger = logging.getLogger("durabus.bus")

F = TypeVar("F", bound=HandlerFunction)


class Subscribing(ABC):
    """What can be subscribed to; ``retry`` and ``slow_timeout`` are for handlers that have none of their own."""

    def __init__(self, dispatcher: Dispatcher, retry: RetryPolicy, slow_timeout: float | None) -> None:
        self._dispatcher = dispatcher
        self._retry = retry
        self._slow_timeout = slow_timeout

    @abstractmethod
    def _before_subscriptions_change(self, verb: str | None) -> None:
        """Refuse it if it cannot be done here or now; ``verb`` is for what may not be done after a shutdown."""

    @abstractmethod
    def _subscriptions_changed(self) -> None:
        """A handler was added or removed."""

    def subscribe(
        self,
        pattern: str | type | HandlerFunction = ANY,
        handler: HandlerFunction | None = None,
        *,
        id: str | None = None,  # noqa: A002  (the word users know)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        slow_timeout: Duration | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
    ) -> str:
        """Call ``handler`` for every event whose type the pattern covers; ``subscribe(handler)`` takes all events.

        What it returns for an event class with an ``event_result_type`` must be of that type.

        ``retry`` replaces the whole policy, or, as a mapping, only the fields it names. Answers the subscription's id:
        ``id`` if one is given, else one derived from pattern and function, equal on every node that runs the same code.
        """
        self._before_subscriptions_change("subscribe")
        glob, function = pattern_and_function(pattern, handler)
        subscription = Handler(
            handler_id=id if id is not None else self._free_id(glob, function),
            pattern=glob,
            function=function,
            timeout=timeout,
            slow_timeout=self._slow_timeout if slow_timeout is None else slow_timeout,
            result_type=result_type(pattern) if isinstance(pattern, type) else None,
            retry=self._retry.merged(retry),
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
    ) -> Callable[[F], F]: ...

    def on(
        self,
        pattern: Any = ANY,
        *,
        id: str | None = None,  # noqa: A002  (the word users know)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        slow_timeout: Duration | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
    ) -> Any:
        """``subscribe`` as a decorator: ``@bus.on("order.*")``, or ``@bus.on`` for all events."""

        def decorate(handler: HandlerFunction) -> HandlerFunction:
            glob = ANY if handler is pattern else pattern
            self.subscribe(glob, handler, id=id, timeout=timeout, slow_timeout=slow_timeout, retry=retry)
            return handler

        return decorate if isinstance(pattern, str | type) else decorate(pattern)

    def unsubscribe(self, subscription_id: str) -> bool:
        """Stop calling a handler. False if there is no such subscription."""
        self._before_subscriptions_change(None)
        removed = self._dispatcher.remove(subscription_id) is not None
        if removed:
            self._subscriptions_changed()
        return removed

    def off(self, pattern: str | type = ANY, handler: HandlerFunction | str | None = None) -> int:
        """Stop calling a handler (a function, or a subscription's id) for ``pattern``; None: all of that pattern.

        Answers how many subscriptions that were.
        """
        glob = pattern_of(pattern)
        found = [
            known.id
            for known in self._dispatcher.handlers
            if known.pattern == glob and (handler is None or handler in (known.id, known.function))
        ]
        return sum(self.unsubscribe(subscription_id) for subscription_id in found)

    def _free_id(self, pattern: str, handler: HandlerFunction) -> str:
        """Two subscriptions of one function to one pattern are told apart by their order, which every node shares."""
        wanted = derived_id(pattern, handler)
        taken = {known.id for known in self._dispatcher.handlers}
        candidates: Iterable[str] = (wanted if n == 1 else f"{wanted}#{n}" for n in range(1, len(taken) + 2))
        chosen = next(candidate for candidate in candidates if candidate not in taken)
        if chosen != wanted:
            logger.warning(
                "subscription %r is told apart from others of that name only by the order of subscribing: give it an "
                "id=, or its results may be taken for another handler's when that order changes",
                chosen,
            )
        return chosen
