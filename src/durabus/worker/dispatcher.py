"""From a claimed event to its settlement: which handlers run, and what their outcomes add up to."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Protocol

from durabus.errors import DuplicateHandlerError, StoreError
from durabus.model.claim import Claim, ClaimRef, default_worker_id
from durabus.model.event import Event
from durabus.model.pattern import matches
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import SETTLED, Completion, HandlerMode, OnUnhandled, ResultStatus
from durabus.worker.attempt import Attempt, HandlerCall, used_up
from durabus.worker.attempt_log import SlowWarning, log_failed_attempt
from durabus.worker.context import Context
from durabus.worker.execution import HandlerOutcome, execute, result_of
from durabus.worker.handler import Handler
from durabus.worker.metrics import Metrics
from durabus.worker.registry import LIVE, Sighting
from durabus.worker.threads import HandlerThreads, threads_ended
from durabus.worker.tracing import Tracing
from durabus.worker.unhandled import Unhandled

ELSEWHERE_DELAY = 0.1
"""How long an event rests for handlers that only other nodes have; three times as long every time it comes back."""
ELSEWHERE_LONGER = 3.0
LONGEST_DELAY = 30.0
MAX_TOLD = 100
BREAKER_OPEN = "the breaker of a handler is open"
MAX_NAMED = 3
"""Handlers that the reason of a release names."""

logger = logging.getLogger("durabus.worker")


class Elsewhere(Protocol):
    """What is known of handlers that only other nodes have."""

    def elsewhere(self, event_type: str, revision: str) -> tuple[str, ...] | None:
        """Their ids for this type; None if ``revision`` has to be learned first."""
        ...

    async def learn(self, revision: str) -> None:
        """Know the handlers as of ``revision``, or later ones."""
        ...

    def nodes(self) -> int:
        """How many nodes serve the bus, this one included, as far as is known."""
        ...

    def last_seen(self, handler_id: str) -> Sighting | None:
        """When and by which other node a handler was last announced; None if it is not known."""
        ...

    async def look(self) -> None:
        """Know the handlers of others as of now, after a pause."""
        ...


class Dispatcher:
    """Holds the handlers of one process and runs a claimed event through those that match its type.

    A handler that succeeded in an earlier attempt does not run again. An unrecoverable error ends the event as soon as
    every other handler had one call.
    ``completion`` first: the first value other than None is enough. ``event_timeout`` bounds all of them together.
    """

    def __init__(
        self,
        *,
        worker_id: str | None = None,
        threads: HandlerThreads | None = None,
        elsewhere: Elsewhere | None = None,
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
        self._elsewhere = elsewhere
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
        """The last claim that was given back for a handler that this node does not have."""
        self._told_waiting: set[tuple[str, ...]] = set()

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._handlers)

    def __contains__(self, handler_id: object) -> bool:
        """Whether a handler has this id."""
        return handler_id in self._handlers

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """In the order of registration."""
        return tuple(self._handlers.values())

    @property
    def max_attempts(self) -> int | None:
        """The bound on attempts of an event that keeps crashing its workers: that of the most patient handler."""
        bounds = [handler.retry.max_attempts for handler in self._handlers.values()]
        return None if not bounds or None in bounds else max(bound for bound in bounds if bound is not None)

    def add(self, handler: Handler) -> None:
        """Refuses an id that is taken."""
        if handler.id in self._handlers:
            raise DuplicateHandlerError(
                f"handler id {handler.id!r} is taken by pattern {self._handlers[handler.id].pattern!r}: "
                "give each handler its own id"
            )
        self._handlers[handler.id] = handler
        self._routes.clear()

    def remove(self, handler_id: str) -> Handler | None:
        """None if there is no such handler."""
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

        The heartbeat's thread asks this, so it does not touch the routes.
        """
        handlers = [handler for handler in self.handlers if matches(handler.pattern, event_type)]
        # A plain function counts twice: it may wait for a thread as long as it may run.
        limits = [math.inf if h.timeout is None else h.timeout * (1 if h.is_async else 2) for h in handlers]
        return sum(limits) if limits else None

    def nodes(self) -> int:
        """How many nodes serve the bus, as far as is known."""
        return 1 if self._elsewhere is None else self._elsewhere.nodes()

    async def prepare(self, claim: Claim) -> None:
        """Learn what has to be learned before the events of a batch begin, so that they begin in their order."""
        if self._elsewhere is not None and self._elsewhere.elsewhere(claim.event.type, claim.revision) is None:
            try:
                await self._elsewhere.learn(claim.revision)
            except StoreError as error:
                # No harm yet: every event asks again when it begins, and goes back to the queue if that fails.
                logger.debug("handlers of other nodes not learned: %s", error)

    def dispatch(self, claim: Claim, settled: list[HandlerResult] | None = None) -> Coroutine[Any, Any, Settlement]:
        """Run what is left to run and say how the claim is to be settled.

        ``settled`` collects the results that no further attempt will change, for a caller that may cancel the rest.
        """
        if self.event_timeout is None and self._slow_timeout is None:
            return self._dispatch(claim, settled, None)
        return self._dispatch_in_time(claim, [] if settled is None else settled)

    async def _dispatch(self, claim: Claim, settled: list[HandlerResult] | None, course: Attempt | None) -> Settlement:
        event = claim.event
        handlers = self.route(event.type)
        context = Context(event, self.worker_id, self._emitter)
        others: tuple[str, ...] = ()
        if self._elsewhere is not None:
            found = self._elsewhere.elsewhere(event.type, claim.revision)
            others = await self._learn(claim) if found is None else found
        if not (handlers or others or claim.results):
            settlement = self._unhandled.settlement(claim)
            if isinstance(settlement, Release):
                self.gave_away = claim.ref
            return settlement
        if len(handlers) == 1 and not claim.results and not others and course is None and self._tracing is None:
            handler = handlers[0]
            wait = handler.breaker.admit()
            if wait:
                return Release(claim.ref, wait, (), BREAKER_OPEN)
            outcome = await execute(handler, context, self._threads)
            if outcome.status is ResultStatus.SUCCEEDED and outcome.value is None:
                return Complete(claim.ref, (), (), outcome.milliseconds)
            return self._settlement(claim, [(handler, outcome, result_of(handler, outcome, 1))], 0.0, ())
        course = course or self._course(claim)
        await course.run(context, self._threads, [] if settled is None else settled)
        if course.winner is not None:
            results = (*(result for _, _, result in course.attempts), *course.stopped)
            return Complete(claim.ref, results, (), _milliseconds(course.attempts))
        return self._settlement(claim, course.attempts, course.blocked_for, others)

    async def _dispatch_in_time(self, claim: Claim, settled: list[HandlerResult]) -> Settlement:
        course = self._course(claim)
        scope = asyncio.timeout(self.event_timeout)
        with ExitStack() as stack:
            if self._slow_timeout is not None:
                stack.enter_context(SlowWarning(claim.event, None, self._slow_timeout))
            try:
                async with scope:
                    return await self._dispatch(claim, settled, course)
            except TimeoutError:
                if not scope.expired():
                    raise
        await threads_ended(claim.event)  # a thread cannot be stopped, and a retry must not begin beside it
        return self._timed_out(claim, course)

    def _course(self, claim: Claim) -> Attempt:
        return Attempt(
            claim,
            self.route(claim.event.type),
            mode=self._mode,
            completion=self._completion,
            tracing=self._tracing,
        )

    def _timed_out(self, claim: Claim, course: Attempt) -> Settlement:
        """One attempt is over for all handlers: what ran was stopped, the rest not begun; both may run again."""
        event, limit = claim.event, f"event {claim.event.event_id} took longer than {self.event_timeout:g} s"
        earlier = {result.handler_id: result for result in claim.results}
        attempts = list(course.attempts)
        begun = {handler.id for handler, _, _ in attempts}
        for handler in self.route(event.type):
            before = earlier.get(handler.id)
            if handler.id in begun or (before is not None and before.status in SETTLED):
                continue
            if handler.id in course.running:
                error, status = f"EventTimeout: stopped while it ran, {limit}", ResultStatus.TIMED_OUT
            else:
                error, status = f"EventTimeout: stopped before it started, {limit}", ResultStatus.PENDING
            outcome = HandlerOutcome(status, (self.event_timeout or 0.0) * 1000, None, error)
            attempts.append((handler, outcome, result_of(handler, outcome, before.attempts + 1 if before else 1)))
        return self._settlement(claim, attempts, 0.0, ())

    def close(self) -> None:
        """Let go of the threads without waiting for handlers that overstayed their time."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _learn(self, claim: Claim) -> tuple[str, ...]:
        assert self._elsewhere is not None  # noqa: S101  (asked only where it is)
        while (found := self._elsewhere.elsewhere(claim.event.type, claim.revision)) is None:
            await self._elsewhere.learn(claim.revision)
        return found

    async def wait_for_others(self, claim: Claim) -> bool:
        """Wait for as long as the event only lacks handlers that no live node has; False if that is not so."""
        waited = False
        while self.lacks_handlers(claim):
            waited = True
            assert self._elsewhere is not None  # noqa: S101  (only others can lack)
            await self._elsewhere.look()
        return waited

    def lacks_handlers(self, claim: Claim) -> bool:
        """Whether the event only waits for handlers that no live node has: registered ones, or any for a kept event."""
        missing = self._nobody_has(claim)
        if missing:
            self._tell_waiting(claim.event, missing)
        return bool(missing) or self._is_kept(claim)

    def _is_kept(self, claim: Claim) -> bool:
        """Whether no node has a handler, as far as is known, and the event is to wait for one."""
        if self._elsewhere is None or not self._unhandled.keeps or claim.results or self.route(claim.event.type):
            return False
        return self._elsewhere.elsewhere(claim.event.type, claim.revision) == ()

    def _nobody_has(self, claim: Claim) -> tuple[str, ...]:
        """The handlers that the event lacks, if no live node has one of them and none is left to run here."""
        others = self._elsewhere and self._elsewhere.elsewhere(claim.event.type, claim.revision)
        done = {result.handler_id for result in claim.results if result.status in SETTLED}
        if not others or any(handler.id not in done for handler in self.route(claim.event.type)):
            return ()
        missing = tuple(handler_id for handler_id in others if handler_id not in done)
        return missing if self._silent_for(missing) > LIVE else ()

    def _silent_for(self, missing: tuple[str, ...]) -> float:
        """Seconds since one of these handlers was last announced."""
        seen = [self._elsewhere.last_seen(handler_id) for handler_id in missing] if self._elsewhere else []
        return min((one.ago for one in seen if one is not None), default=0.0)

    def _hand_over(self, claim: Claim, missing: tuple[str, ...], results: tuple[HandlerResult, ...]) -> Release:
        """Done here, but handlers that only other nodes have are not done with it: one of those nodes is to claim it.

        If none of them is alive, the rest grows with the silence, so that the log of the event stays short.
        """
        self.gave_away, silent_for = claim.ref, self._silent_for(missing)
        delay = min(ELSEWHERE_DELAY * ELSEWHERE_LONGER ** min(_returns(claim.event), 10), LONGEST_DELAY)
        if silent_for > LIVE and _returns(claim.event):
            self._tell_waiting(claim.event, missing)
            delay = max(delay, silent_for / 2)
        return Release(claim.ref, delay, results, self._waits_for(missing))

    def _waits_for(self, missing: tuple[str, ...]) -> str:
        """In words: each handler, and where and when it was last seen."""
        names = []
        for handler_id in missing[:MAX_NAMED]:
            seen = None if self._elsewhere is None else self._elsewhere.last_seen(handler_id)
            where = "" if seen is None else f", last seen on node {seen.node} {seen.ago:.0f} s ago"
            names.append(f"waits for handler {handler_id}{where}")
        more = len(missing) - MAX_NAMED
        return "; ".join(names) + (f"; and for {more} more" if more > 0 else "")

    def _tell_waiting(self, event: Event, missing: tuple[str, ...]) -> None:
        """Once for the same handlers."""
        if missing not in self._told_waiting:
            if len(self._told_waiting) >= MAX_TOLD:
                self._told_waiting.clear()
            self._told_waiting.add(missing)
            logger.warning(
                "event %s (%s) %s. No live node has it, so events of this type wait until a node announces it or its "
                "registration ends. If it is gone for good: durabus handlers forget --bus %s %s",
                event.event_id,
                event.type,
                self._waits_for(missing),
                event.bus,
                " ".join(missing),
            )

    def _settlement(
        self, claim: Claim, attempts: list[HandlerCall], blocked_for: float, others: tuple[str, ...]
    ) -> Settlement:
        event, results = claim.event, tuple(result for _, _, result in attempts)
        milliseconds = _milliseconds(attempts)
        failed = [attempt for attempt in attempts if attempt[1].status is not ResultStatus.SUCCEEDED]
        fatal = _is_fatal(claim, attempts)
        waits = _waits(event, failed, fatal=fatal)
        if fatal:
            called = _called(claim, attempts)
            others = tuple(handler_id for handler_id in others if handler_id not in called)
            if all(handler.id in called for handler in self.route(event.type)):
                blocked_for = 0.0
            if not (waits or blocked_for or others):
                return Complete(claim.ref, results, (), milliseconds)
        if waits or (failed and not fatal):
            if blocked_for:
                waits.append(blocked_for)
            return Fail(claim.ref, _error_text(failed), min(waits, default=None), results, milliseconds)
        if blocked_for:
            return Release(claim.ref, blocked_for, results, BREAKER_OPEN)
        if others:
            done = {r.handler_id for r in claim.results if r.status in SETTLED}
            missing = tuple(handler_id for handler_id in others if handler_id not in done)
            if missing:
                return self._hand_over(claim, missing, results)
        return _unless_spent(claim, results, milliseconds)


def _is_fatal(claim: Claim, attempts: list[HandlerCall]) -> bool:
    """Whether a handler said, now or earlier, that no further attempt will help."""
    return any(outcome.status is ResultStatus.UNRECOVERABLE for _, outcome, _ in attempts) or any(
        result.status is ResultStatus.UNRECOVERABLE for result in claim.results
    )


def _called(claim: Claim, attempts: list[HandlerCall]) -> set[str]:
    """The ids of the handlers that had a call, now or earlier; an event's timeout may have come before it."""
    results = (*claim.results, *(result for _, _, result in attempts))
    return {result.handler_id for result in results if result.status is not ResultStatus.PENDING}


def _waits(event: Event, failed: list[HandlerCall], *, fatal: bool) -> list[float]:
    """Seconds until the handlers that may be called again. Every failed attempt is logged.

    After a fatal error these are only the ones that the event's timeout kept from their call.
    """
    waits = []
    for handler, outcome, _ in failed:
        delay = None if fatal and outcome.status is not ResultStatus.PENDING else _delay(handler, outcome, event)
        # An unrecoverable error is a verdict: its text says all. Any other one that ends the attempts wants its place.
        traceback = None if outcome.status is ResultStatus.UNRECOVERABLE else (outcome.value or {}).get("traceback")
        log_failed_attempt(event, handler, outcome.error or "", delay, traceback)
        if delay is not None:
            waits.append(delay)
    return waits


def _milliseconds(attempts: list[HandlerCall]) -> float:
    return sum(outcome.milliseconds for _, outcome, _ in attempts)


def _returns(event: Event) -> int:
    """How often the event was given back: a release returns the attempt, but not the fence."""
    return event.fence - event.attempts


def _delay(handler: Handler, outcome: HandlerOutcome, event: Event) -> float | None:
    """Seconds until the next attempt; None when there is none."""
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
    """Complete, unless a handler failed earlier and will not run again: out of attempts, or no longer subscribed."""
    now_done = {result.handler_id for result in results}
    spent = [r for r in claim.results if r.status not in SETTLED and r.handler_id not in now_done]
    if not spent:
        return Complete(claim.ref, results, (), milliseconds)
    error = "; ".join(f"{r.handler_id} does not run again, its last error: {r.error or r.status}" for r in spent)
    return Fail(claim.ref, error, None, results, milliseconds)
