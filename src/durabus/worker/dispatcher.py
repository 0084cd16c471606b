"""The dispatcher runs a claimed event through its handlers, and makes one settlement of their outcomes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from durabus.errors import DuplicateHandlerError
from durabus.model.claim import Claim, ClaimRef, default_worker_id
from durabus.model.event import Event
from durabus.model.pattern import matches
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import SETTLED, Completion, HandlerMode, OnUnhandled, ResultStatus
from durabus.worker.attempt import Attempt, HandlerCall, used_up
from durabus.worker.execution import HandlerOutcome, execute, result_of
from durabus.worker.handler import Context, Handler
from durabus.worker.missing_handlers import MissingHandlers, RemoteHandlers, Unhandled
from durabus.worker.progress import EventProgress
from durabus.worker.steps import Steps
from durabus.worker.telemetry import Metrics, SlowWarning, Tracing, log_failed_attempt
from durabus.worker.threads import HandlerThreads, threads_ended

BREAKER_OPEN = "the breaker of a handler is open"
SLEEPS = "a handler sleeps"
LEASE_EXPIRED = "lease expired"
"""How the error begins that a store writes when it takes an event back."""


class Dispatcher:
    """Holds the handlers of one process and runs a claimed event through those that match its type.

    A handler that succeeded in an earlier attempt does not run again. An unrecoverable error ends the event as soon as
    every other handler had one call.
    With ``completion`` first, the first value other than None ends the event. ``event_timeout`` bounds all handlers of
    an event together.
    """

    def __init__(
        self,
        *,
        worker_id: str | None = None,
        threads: HandlerThreads | None = None,
        remote: RemoteHandlers | None = None,
        handler_mode: HandlerMode = HandlerMode.SERIAL,
        completion: Completion = Completion.ALL,
        event_timeout: float | None = None,
        event_slow_timeout: float | None = None,
        tracing: Tracing | None = None,
        emitter: Callable[..., Any] | None = None,
        unhandled: Unhandled | None = None,
    ) -> None:
        self.worker_id = worker_id or default_worker_id()
        self._threads = threads or HandlerThreads()
        self._mode = handler_mode
        self._completion = completion
        self.event_timeout = event_timeout
        self._slow_timeout = event_slow_timeout
        self._tracing = tracing
        self._emitter = emitter
        self._unhandled = unhandled or Unhandled(OnUnhandled.COMPLETE, Metrics())
        self._handlers: dict[str, Handler] = {}
        self._routes: dict[str, tuple[Handler, ...]] = {}
        self.gave_away: ClaimRef | None = None
        """The last claim that went back to the queue for a handler that this node does not have."""
        self.missing = MissingHandlers(remote, route=self.route, keeps=lambda: self._unhandled.keeps)

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._handlers)

    def __contains__(self, handler_id: object) -> bool:
        """Whether a handler has this id."""
        return handler_id in self._handlers

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """All handlers, in the order of registration."""
        return tuple(self._handlers.values())

    @property
    def max_attempts(self) -> int | None:
        """The most attempts for an event that keeps crashing its workers: the largest limit of all handlers."""
        bounds = [handler.retry.max_attempts for handler in self._handlers.values()]
        return None if not bounds or None in bounds else max(bound for bound in bounds if bound is not None)

    def add(self, handler: Handler) -> None:
        """Add a handler; raise ``DuplicateHandlerError`` if its id is taken."""
        if handler.id in self._handlers:
            raise DuplicateHandlerError(
                f"handler id {handler.id!r} is taken by pattern {self._handlers[handler.id].pattern!r}: "
                "give each handler its own id"
            )
        self._handlers[handler.id] = handler
        self._routes.clear()

    def remove(self, handler_id: str) -> Handler | None:
        """Remove and return a handler; None if no handler has this id."""
        handler = self._handlers.pop(handler_id, None)
        self._routes.clear()
        return handler

    def route(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers whose pattern covers ``event_type``, in the order of registration."""
        found = self._routes.get(event_type)
        if found is None:
            if len(self._routes) >= 10_000:  # noqa: PLR2004  (types made up at run time must not fill the memory)
                self._routes.clear()
            found = tuple(h for h in self._handlers.values() if matches(h.pattern, event_type))
            self._routes[event_type] = found
        return found

    def allowance(self, event_type: str) -> float | None:
        """Seconds that the handlers of a type may take; None if there are none.

        The heartbeat thread calls this, so it does not touch the routes.
        """
        handlers = [handler for handler in self.handlers if matches(handler.pattern, event_type)]
        # A plain function counts twice: it may wait for a thread as long as it may run.
        limits = [math.inf if h.timeout is None else h.timeout * (1 if h.is_async else 2) for h in handlers]
        return sum(limits) if limits else None

    def dispatch(self, claim: Claim, progress: EventProgress | None = None) -> Coroutine[Any, Any, Settlement]:
        """Run the handlers that are left to run, and return the settlement of the claim.

        ``progress`` gets the results that no further attempt will change, for a caller that may cancel the others.
        """
        if self.event_timeout is None and self._slow_timeout is None:
            return self._dispatch(claim, progress, None)
        return self._dispatch_in_time(claim, progress)

    async def _dispatch(self, claim: Claim, progress: EventProgress | None, attempt: Attempt | None) -> Settlement:
        event = claim.event
        if event.errors and (error := self._lost_last_attempt(event)):
            return Fail(claim.ref, error, None)
        handlers = self.route(event.type)
        progress = progress or EventProgress(claim.ref)
        context = Context(event, self.worker_id, self._emitter)
        known = self.missing.known(claim)
        others = await self.missing.learn(claim) if known is None else known
        if not (handlers or others or any(r.status is not ResultStatus.KEPT for r in claim.results)):
            settlement = self._unhandled.settlement(claim)
            if isinstance(settlement, Release):
                self.gave_away = claim.ref
            return settlement
        if len(handlers) == 1 and not claim.results and not others and attempt is None and self._tracing is None:
            handler = handlers[0]
            wait = handler.breaker.admit()
            if wait:
                return Release(claim.ref, wait, (), BREAKER_OPEN)
            if handler.takes_context:
                context = Context(event, self.worker_id, self._emitter, Steps(handler.id, claim, progress))
            outcome = await execute(handler, context, self._threads)
            if handler.takes_context:
                await progress.steps_ended()
            if outcome.status is ResultStatus.SUCCEEDED and outcome.value is None:
                return Complete(claim.ref, (), (), outcome.milliseconds)
            return self._settlement(claim, [(handler, outcome, result_of(handler, outcome, 1))], 0.0, ())
        attempt = attempt or self._attempt(claim)
        await attempt.run(context, self._threads, progress)
        if attempt.winner is not None:
            results = (*(result for _, _, result in attempt.calls), *attempt.stopped)
            return Complete(claim.ref, results, (), _milliseconds(attempt.calls))
        return self._settlement(claim, attempt.calls, attempt.blocked_for, others)

    async def _dispatch_in_time(self, claim: Claim, progress: EventProgress | None) -> Settlement:
        attempt = self._attempt(claim)
        scope = asyncio.timeout(self.event_timeout)
        with ExitStack() as stack:
            if self._slow_timeout is not None:
                stack.enter_context(SlowWarning(claim.event, None, self._slow_timeout))
            try:
                async with scope:
                    return await self._dispatch(claim, progress, attempt)
            except TimeoutError:
                if not scope.expired():
                    raise
        await threads_ended(claim.event)  # nothing can stop a thread, and a retry must not begin beside it
        return self._timed_out(claim, attempt)

    def _lost_last_attempt(self, event: Event) -> str | None:
        """The error of an event that lost its last attempt with a worker; None if it may run.

        A process that does not know the handlers' limit, such as a server, may have taken the event back.
        """
        limit = event.max_attempts if event.max_attempts is not None else self.max_attempts
        if limit is None or event.attempts <= limit or not event.errors[-1].startswith(LEASE_EXPIRED):
            return None
        return f"no attempt is left: the last of {limit} ended when the lease of its worker expired"

    def _attempt(self, claim: Claim) -> Attempt:
        return Attempt(
            claim,
            self.route(claim.event.type),
            mode=self._mode,
            completion=self._completion,
            tracing=self._tracing,
        )

    def _timed_out(self, claim: Claim, attempt: Attempt) -> Settlement:
        """End the attempt for all handlers: those that ran were stopped, the others not begun; all may run again."""
        event, limit = claim.event, f"event {claim.event.event_id} took longer than {self.event_timeout:g} s"
        earlier = {result.handler_id: result for result in claim.results}
        calls = list(attempt.calls)
        begun = {handler.id for handler, _, _ in calls}
        for handler in self.route(event.type):
            before = earlier.get(handler.id)
            if handler.id in begun or (before is not None and before.status in SETTLED):
                continue
            if handler.id in attempt.running:
                error, status = f"EventTimeout: stopped while it ran, {limit}", ResultStatus.TIMED_OUT
            else:
                error, status = f"EventTimeout: stopped before it started, {limit}", ResultStatus.PENDING
            outcome = HandlerOutcome(status, (self.event_timeout or 0.0) * 1000, None, error)
            calls.append((handler, outcome, result_of(handler, outcome, before.attempts + 1 if before else 1)))
        return self._settlement(claim, calls, 0.0, ())

    def close(self) -> None:
        """Close the threads without waiting for handlers that exceeded their timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _settlement(
        self, claim: Claim, calls: list[HandlerCall], blocked_for: float, others: tuple[str, ...]
    ) -> Settlement:
        event, milliseconds = claim.event, _milliseconds(calls)
        asleep = [call for call in calls if call[1].is_suspended]
        calls = [call for call in calls if not call[1].is_suspended]
        results = (*(result for _, _, result in calls), *_results_of_sleepers(asleep))
        failed = [call for call in calls if call[1].status is not ResultStatus.SUCCEEDED]
        fatal = _is_fatal(claim, calls)
        waits = _waits(event, failed, fatal=fatal)
        goes_on_in = min((outcome.retry_after or 0.0 for _, outcome, _ in asleep), default=None)
        if fatal:
            called = _called(claim, calls)
            others = tuple(handler_id for handler_id in others if handler_id not in called)
            if all(handler.id in called for handler in self.route(event.type)):
                blocked_for = 0.0
            if not (waits or blocked_for or others or asleep):
                return Complete(claim.ref, results, (), milliseconds)
        if waits or (failed and not fatal and goes_on_in is None):
            waits += [blocked_for] if blocked_for else []
            waits += [] if goes_on_in is None else [goes_on_in]
            return Fail(claim.ref, _error_text(failed), min(waits, default=None), results, milliseconds)
        if goes_on_in is not None:
            return Release(claim.ref, min(goes_on_in, blocked_for or goes_on_in), results, SLEEPS)
        if blocked_for:
            return Release(claim.ref, blocked_for, results, BREAKER_OPEN)
        if others:
            done = {r.handler_id for r in claim.results if r.status in SETTLED}
            missing = tuple(handler_id for handler_id in others if handler_id not in done)
            if missing:
                self.gave_away = claim.ref
                return self.missing.hand_over(claim, missing, results)
        return _unless_spent(claim, results, milliseconds)


def _results_of_sleepers(asleep: list[HandlerCall]) -> list[HandlerResult]:
    """Return what a sleep keeps, and that the handler is not done: it must not be forgotten if no node has it later."""
    results: list[HandlerResult] = []
    for handler, outcome, result in asleep:
        results += outcome.kept
        results.append(
            HandlerResult(handler_id=handler.id, status=ResultStatus.PENDING, attempts=max(result.attempts - 1, 0))
        )
    return results


def _is_fatal(claim: Claim, calls: list[HandlerCall]) -> bool:
    """Whether a handler ended, now or earlier, with an error that no further attempt will change."""
    return any(outcome.status is ResultStatus.UNRECOVERABLE for _, outcome, _ in calls) or any(
        result.status is ResultStatus.UNRECOVERABLE for result in claim.results
    )


def _called(claim: Claim, calls: list[HandlerCall]) -> set[str]:
    """The ids of the handlers that were called, now or earlier. A timeout of the event may come before a call."""
    results = (*claim.results, *(result for _, _, result in calls))
    return {result.handler_id for result in results if result.status is not ResultStatus.PENDING}


def _waits(event: Event, failed: list[HandlerCall], *, fatal: bool) -> list[float]:
    """Log every failed attempt, and return the seconds until each handler that the worker may call again.

    After a fatal error these are only the handlers that the event's timeout kept from being called.
    """
    waits = []
    for handler, outcome, _ in failed:
        delay = None if fatal and outcome.status is not ResultStatus.PENDING else _delay(handler, outcome, event)
        # The text of an unrecoverable error says all. The log shows where any other last error was raised.
        traceback = None if outcome.status is ResultStatus.UNRECOVERABLE else (outcome.value or {}).get("traceback")
        log_failed_attempt(event, handler, outcome.error or "", delay, traceback)
        if delay is not None:
            waits.append(delay)
    return waits


def _milliseconds(calls: list[HandlerCall]) -> float:
    return sum(outcome.milliseconds for _, outcome, _ in calls)


def _delay(handler: Handler, outcome: HandlerOutcome, event: Event) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    if outcome.status is ResultStatus.UNRECOVERABLE or used_up(handler, event, event.attempts):
        return None
    if outcome.retry_after is not None:
        return outcome.retry_after
    return handler.retry.delay_before(event.attempts + 1, random.random)


def _error_text(failed: list[HandlerCall]) -> str:
    if len(failed) == 1:
        return failed[0][1].error or failed[0][1].status
    return "; ".join(f"{handler.id}: {outcome.error}" for handler, outcome, _ in failed)


def _unless_spent(claim: Claim, results: tuple[HandlerResult, ...], milliseconds: float | None) -> Settlement:
    """Complete the event, or fail it if a handler failed earlier and will not run again.

    Such a handler is out of attempts, or no longer subscribed.
    """
    now_done = {result.handler_id for result in results}
    spent = [r for r in claim.results if r.status not in SETTLED and r.handler_id not in now_done]
    if not spent:
        return Complete(claim.ref, results, (), milliseconds)
    error = "; ".join(
        f"{r.handler_id} slept, and no node has it any more"
        if r.status is ResultStatus.PENDING and r.error is None
        else f"{r.handler_id} does not run again, its last error: {r.error or r.status}"
        for r in spent
    )
    return Fail(claim.ref, error, None, results, milliseconds)
