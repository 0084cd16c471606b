"""From a claimed event to its settlement: which handlers run, and what their outcomes add up to."""

from __future__ import annotations

import logging
import random
from typing import Protocol

from durabus.errors import DuplicateHandlerError, StoreError
from durabus.model.claim import Claim, default_worker_id
from durabus.model.event import Event
from durabus.model.pattern import matches
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import SETTLED, ResultStatus
from durabus.worker.context import Context
from durabus.worker.execution import Outcome, execute, result_of
from durabus.worker.handler import Handler
from durabus.worker.retry_log import log_failed_attempt
from durabus.worker.threads import HandlerThreads

ELSEWHERE_DELAY = 0.5
"""How long an event rests for handlers that only other nodes have; twice as long every time it comes back."""
ELSEWHERE_DOUBLINGS = 4
WAITS_LONG = 3
"""Returns to the queue after which it is told that an event waits for other nodes."""
MAX_TOLD = 100

logger = logging.getLogger("durabus.worker")

Attempt = tuple[Handler, Outcome, HandlerResult]


class Elsewhere(Protocol):
    """What is known of handlers that only other nodes have."""

    def elsewhere(self, event_type: str, revision: str) -> tuple[str, ...] | None:
        """Their ids for this type; None if ``revision`` has to be learned first."""
        ...

    async def learn(self, revision: str) -> None:
        """Know the handlers as of ``revision``, or later ones."""
        ...


class Dispatcher:
    """Holds the handlers of one process and runs a claimed event through those that match its type, one after another.

    A handler that succeeded in an earlier attempt does not run again. The first unrecoverable error ends the event.
    """

    def __init__(
        self,
        *,
        worker_id: str | None = None,
        threads: HandlerThreads | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.worker_id = worker_id or default_worker_id()
        self._threads = threads or HandlerThreads()
        self._elsewhere = elsewhere
        self._handlers: dict[str, Handler] = {}
        self._routes: dict[str, tuple[Handler, ...]] = {}
        self.gave_away = False
        """Whether an event went back for another node's handler: let the others ask first next time."""
        self._told_waiting: set[tuple[str, ...]] = set()

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._handlers)

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

    async def prepare(self, claim: Claim) -> None:
        """Learn what has to be learned before the events of a batch begin, so that they begin in their order."""
        if self._elsewhere is not None and self._elsewhere.elsewhere(claim.event.type, claim.revision) is None:
            try:
                await self._elsewhere.learn(claim.revision)
            except StoreError as error:
                # No harm yet: every event asks again when it begins, and goes back to the queue if that fails.
                logger.debug("handlers of other nodes not learned: %s", error)

    async def dispatch(self, claim: Claim, succeeded: list[HandlerResult] | None = None) -> Settlement:
        """Run what is left to run and say how the claim is to be settled.

        ``succeeded`` collects the handlers that are done, for a caller that may have to cancel the rest.
        """
        event = claim.event
        handlers = self.route(event.type)
        context = Context(event, self.worker_id)
        self.gave_away = False
        others: tuple[str, ...] = ()
        if self._elsewhere is not None:
            found = self._elsewhere.elsewhere(event.type, claim.revision)
            others = await self._learn(claim) if found is None else found
        if len(handlers) == 1 and not claim.results and not others:
            handler = handlers[0]
            wait = handler.breaker.admit()
            if wait:
                return Release(claim.ref, wait)
            outcome = await execute(handler, context, self._threads)
            if outcome.status is ResultStatus.SUCCEEDED and outcome.value is None:
                return Complete(claim.ref, (), (), outcome.milliseconds)
            return self._settlement(claim, [(handler, outcome, result_of(handler, outcome, 1))], 0.0, ())
        attempts, blocked_for = await self._run_all(claim, handlers, context, [] if succeeded is None else succeeded)
        return self._settlement(claim, attempts, blocked_for, others)

    def close(self) -> None:
        """Let go of the threads without waiting for handlers that overstayed their time."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _learn(self, claim: Claim) -> tuple[str, ...]:
        assert self._elsewhere is not None  # noqa: S101  (asked only where it is)
        while (found := self._elsewhere.elsewhere(claim.event.type, claim.revision)) is None:
            await self._elsewhere.learn(claim.revision)
        return found

    async def _run_all(
        self, claim: Claim, handlers: tuple[Handler, ...], context: Context, succeeded: list[HandlerResult]
    ) -> tuple[list[Attempt], float]:
        """What the handlers did that were left to run, and how long the first blocked one is to wait."""
        earlier = {result.handler_id: result for result in claim.results}
        attempts: list[Attempt] = []
        blocked_for = 0.0
        for handler in handlers:
            before = earlier.get(handler.id)
            if before is not None and _will_not_run(before, handler, claim.event):
                continue
            wait = handler.breaker.admit()
            if wait:
                blocked_for = min(blocked_for or wait, wait)
                continue
            outcome = await execute(handler, context, self._threads)
            result = result_of(handler, outcome, before.attempts + 1 if before else 1)
            attempts.append((handler, outcome, result))
            if outcome.status is ResultStatus.SUCCEEDED:
                succeeded.append(result)
            elif outcome.status is ResultStatus.UNRECOVERABLE:
                break
        return attempts, blocked_for

    def _tell_waiting(self, event: Event, missing: tuple[str, ...]) -> None:
        """Once for the same handlers, and not for an event that the other node takes at once."""
        if _returns(event) >= WAITS_LONG and missing not in self._told_waiting:
            if len(self._told_waiting) >= MAX_TOLD:
                self._told_waiting.clear()
            self._told_waiting.add(missing)
            logger.warning(
                "event %s (%s) and others wait for handlers that only other nodes announced: %s. If these are gone for "
                "good, it ends when their time is over, or at once after store.unregister_handler(bus, handler_id)",
                event.event_id,
                event.type,
                ", ".join(missing),
            )

    def _settlement(
        self, claim: Claim, attempts: list[Attempt], blocked_for: float, others: tuple[str, ...]
    ) -> Settlement:
        event, results = claim.event, tuple(result for _, _, result in attempts)
        milliseconds = sum(outcome.milliseconds for _, outcome, _ in attempts)
        failed = [attempt for attempt in attempts if attempt[1].status is not ResultStatus.SUCCEEDED]
        waits = [blocked_for] if blocked_for else []
        for handler, outcome, _ in failed:
            delay = _delay(handler, outcome, event)
            log_failed_attempt(event, handler, outcome.error or "", delay)
            if delay is not None:
                waits.append(delay)
        if any(outcome.status is ResultStatus.UNRECOVERABLE for _, outcome, _ in failed):
            return Complete(claim.ref, results, (), milliseconds)
        if failed:
            return Fail(claim.ref, _error_text(failed), min(waits, default=None), results, milliseconds)
        if blocked_for:
            return Release(claim.ref, blocked_for, results)
        if others:
            done = {r.handler_id for r in claim.results if r.status in SETTLED}
            missing = tuple(handler_id for handler_id in others if handler_id not in done)
            if missing:
                # Done here, but a handler that only other nodes have is not done with it.
                self.gave_away = True
                self._tell_waiting(event, missing)
                return Release(claim.ref, _rest(event), results)
        return _unless_spent(claim, results, milliseconds)


def _rest(event: Event) -> float:
    return ELSEWHERE_DELAY * 2.0 ** min(_returns(event), ELSEWHERE_DOUBLINGS)


def _returns(event: Event) -> int:
    """How often the event was given back: a release returns the attempt, but not the fence."""
    return event.fence - event.attempts


def _delay(handler: Handler, outcome: Outcome, event: Event) -> float | None:
    """Seconds until the next attempt; None when there is none."""
    if outcome.status is ResultStatus.UNRECOVERABLE or _used_up(handler, event, event.attempts):
        return None
    if outcome.retry_after is not None:
        return outcome.retry_after
    return handler.retry.delay_before(event.attempts + 1, random.random)


def _will_not_run(before: HandlerResult, handler: Handler, event: Event) -> bool:
    return before.status in SETTLED or _used_up(handler, event, event.attempts - 1)


def _used_up(handler: Handler, event: Event, attempts: int) -> bool:
    limit = event.max_attempts if event.max_attempts is not None else handler.retry.max_attempts
    return limit is not None and attempts >= limit


def _error_text(failed: list[Attempt]) -> str:
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
