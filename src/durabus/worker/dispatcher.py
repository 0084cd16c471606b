"""The dispatcher runs a claimed event through its handlers, and makes one settlement of their outcomes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

from msgspec.structs import replace

from durabus.errors import DuplicateHandlerError
from durabus.model.claim import LOST, Claim, ClaimRef, default_worker_id
from durabus.model.event import Event
from durabus.model.pattern import matches
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import SETTLED, Completion, HandlerMode, OnUnhandled, ResultStatus
from durabus.worker import outcomes
from durabus.worker.attempt import ENOUGH, Attempt, HandlerCall, run_handler, used_up
from durabus.worker.batches import Batches
from durabus.worker.cancelling import expired
from durabus.worker.children.emissions import EmittingCall
from durabus.worker.coordination import Coordinator, RemoteEnd, SharePlan, plan_of, timed_out_elsewhere
from durabus.worker.execution import HandlerOutcome, execute, result_of
from durabus.worker.handler import Context, Handler
from durabus.worker.missing_handlers import MissingHandlers, RemoteHandlers, Unhandled
from durabus.worker.progress import EventProgress
from durabus.worker.steps import Steps
from durabus.worker.telemetry import Metrics, SlowWarning, Tracing
from durabus.worker.threads import HandlerThreads, threads_ended

BREAKER_OPEN = "the breaker of a handler is open"
SLEEPS = "a handler sleeps"
WAITS = "a handler waits for an event"
NOTHING_REMOTE = RemoteEnd()
RunHere = Callable[..., Awaitable[None]]
AwaitOthers = Callable[[], Coroutine[Any, Any, tuple[HandlerResult, ...]]]


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
        self.batches = Batches(self._threads)
        self.handler_mode = handler_mode
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
        self.coordinator: Coordinator | None = None
        """Waits for handlers on other nodes. Without it, an event goes back to the queue for them."""
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
        if handler is not None and handler.batch is not None:
            self.batches.begin(handler)
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
        limits += [handler.batch.within for handler in handlers if handler.batch is not None]
        return sum(limits) if limits else None

    def dispatch(self, claim: Claim, progress: EventProgress | None = None) -> Coroutine[Any, Any, Settlement]:
        """Run the handlers that are left to run, and return the settlement of the claim.

        ``progress`` gets the results that no further attempt will change, for a caller that may cancel the others.
        """
        if claim.event.metadata_json is not None and claim.event.has_expired:
            return self._dispatch_expired(claim, progress)
        if self.event_timeout is None and self._slow_timeout is None:
            return self._dispatch(claim, progress, None)
        return self._dispatch_in_time(claim, progress)

    async def _dispatch_expired(self, claim: Claim, progress: EventProgress | None) -> Settlement:
        """Cancel an expired event. A parent whose handlers are done, on all nodes, only waits for its children."""
        done = {result.handler_id for result in claim.results if result.status in SETTLED}
        left = {*(handler.id for handler in self.route(claim.event.type)), *await self.missing.learn(claim)} - done
        return expired(claim) if left or not claim.results else await self._dispatch_in_time(claim, progress)

    async def _dispatch(  # noqa: C901  (the frequent case stands here as one piece)
        self, claim: Claim, progress: EventProgress | None, attempt: Attempt | None
    ) -> Settlement:
        event = claim.event
        if event.errors and (error := self._lost_last_attempt(event)):
            return Fail(claim.ref, error, None)
        handlers = self.route(event.type)
        progress = progress or EventProgress(claim.ref)
        context = Context(event, self.worker_id, self._emitter)
        known = self.missing.known(claim)
        others = await self.missing.learn(claim) if known is None else known
        if not (handlers or others or claim.results):
            settlement = self._unhandled.settlement(claim)
            if isinstance(settlement, Release):
                self.gave_away = claim.ref
            return settlement
        if len(handlers) == 1 and not claim.results and not others and attempt is None and self._tracing is None:
            handler = handlers[0]
            wait = handler.breaker.admit()
            if wait:
                return Release(claim.ref, wait, (), BREAKER_OPEN)
            run = EmittingCall(handler.id, event, progress.parts.store)
            if handler.takes_context:
                context = Context(event, self.worker_id, self._emitter, Steps(run, claim, progress))
            call = (
                execute(handler, context, self._threads)
                if handler.batch is None
                else self.batches.execute(handler, context, progress)
            )
            outcome = await run_handler(run, call, progress)
            if handler.takes_context:
                await progress.steps_ended()
            if outcome.status is ResultStatus.SUCCEEDED and outcome.value is None:
                return Complete(claim.ref, (), (), outcome.milliseconds, handler_id=handler.id)
            return self._settlement(claim, [(handler, outcome, result_of(handler, outcome, 1))], 0.0)
        attempt = attempt or self._attempt(claim, handlers)
        if others or any(result.is_offered for result in claim.results):
            return await self._dispatch_shared(claim, attempt, context, progress, others)
        await attempt.run(context, self._threads, progress)
        if attempt.winner is not None:
            return _completed_first(claim, attempt)
        return self._settlement(claim, attempt.calls, attempt.blocked_for)

    async def _dispatch_shared(
        self, claim: Claim, attempt: Attempt, context: Context, progress: EventProgress, others: tuple[str, ...]
    ) -> Settlement:
        """Run the handlers of an event that other nodes have handlers for, too, or that others have offered."""
        coordinator, serial = self.coordinator, self.handler_mode is HandlerMode.SERIAL
        is_live = (lambda _: False) if coordinator is None else coordinator.is_live
        plan = plan_of(claim, self.route(claim.event.type), others, is_live, serial=serial)
        attempt.handlers, attempt.awaited = plan.here, plan.awaited
        run = partial(attempt.run, context, self._threads, progress)
        if coordinator is None or not plan.awaited:
            await run()
            remote = RemoteEnd(absent=(*plan.absent, *plan.awaited))
        else:
            waits = partial(coordinator.wait, claim, plan.awaited, first=self._completion is Completion.FIRST)
            await (_one_by_one if serial else _side_by_side)(attempt, run, waits, plan, progress)
            results = await coordinator.read(claim.event.id)
            claim = replace(claim, results=results)
            progress.learn(results)
            remote = await coordinator.end_of(results, plan.awaited)
            remote = remote._replace(absent=(*plan.absent, *remote.absent))
            attempt.winner = attempt.winner or next((r.handler_id for r in results if attempt.wins(r)), None)
        if attempt.winner is not None:
            attempt.leave_only_the_winner()
            return _completed_first(claim, attempt, plan.awaited)
        return self._settlement(claim, attempt.calls, attempt.blocked_for, remote, plan.gone)

    async def call_alone(self, claim: Claim, handler_id: str, progress: EventProgress, attempts: int) -> Attempt | None:
        """Call one handler for an event that another node coordinates. None if this node has no such handler for it.

        ``attempts`` counts the claims on the handler. One that crashes its workers again and again is not called.
        """
        handler = next((one for one in self.route(claim.event.type) if one.id == handler_id), None)
        if handler is None:
            return None
        attempt = self._attempt(claim, () if used_up(handler, claim.event, attempts - 1) else (handler,))
        await attempt.run(Context(claim.event, self.worker_id, self._emitter), self._threads, progress)
        return attempt

    async def _dispatch_in_time(self, claim: Claim, progress: EventProgress | None) -> Settlement:
        attempt, progress = self._attempt(claim, self.route(claim.event.type)), progress or EventProgress(claim.ref)
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
        await progress.steps_ended()
        if attempt.awaited and self.coordinator is not None:
            claim = replace(claim, results=await self.coordinator.read(claim.event.id))
        return self._timed_out(claim, attempt)

    def _lost_last_attempt(self, event: Event) -> str | None:
        """The error of an event that lost its last attempt with a worker; None if it may run.

        A process that does not know the handlers' limit, such as a server, may have taken the event back.
        """
        limit = event.max_attempts if event.max_attempts is not None else self.max_attempts
        if limit is None or event.attempts <= limit or not event.errors[-1].startswith(LOST):
            return None
        return f"no attempt is left: the last of {limit} ended with the lease or the process of its worker"

    def _attempt(self, claim: Claim, handlers: tuple[Handler, ...]) -> Attempt:
        return Attempt(
            claim,
            handlers,
            mode=self.handler_mode,
            completion=self._completion,
            tracing=self._tracing,
            batches=self.batches,
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
        remote, stopped = timed_out_elsewhere(claim, attempt.awaited - {handler.id for handler, _, _ in calls}, limit)
        return self._settlement(claim, calls, 0.0, remote, stopped)

    def close(self) -> None:
        """Close the threads without waiting for handlers that exceeded their timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _settlement(
        self,
        claim: Claim,
        calls: list[HandlerCall],
        blocked_for: float,
        remote: RemoteEnd = NOTHING_REMOTE,
        further: tuple[HandlerResult, ...] = (),
    ) -> Settlement:
        """Return the settlement of an attempt. ``further`` are results of handlers that were not called here."""
        event, milliseconds, others = claim.event, outcomes.milliseconds(calls), remote.absent
        asleep = [call for call in calls if call[1].is_suspended]
        calls = [call for call in calls if not call[1].is_suspended]
        asleep_here = outcomes.results_of_sleepers(asleep)
        results = (*(result for _, _, result in calls), *asleep_here, *remote.event_waits, *further)
        failed = [call for call in calls if call[1].status is not ResultStatus.SUCCEEDED]
        fatal = outcomes.is_fatal(claim, calls)
        waits = outcomes.waits(event, failed, fatal=fatal) + ([] if fatal else [*remote.waits])
        sleeps = [outcome.left for _, outcome, _ in asleep]
        goes_on_in = min([*sleeps, *([] if remote.goes_on_in is None else [remote.goes_on_in])], default=None)
        if fatal:
            called = outcomes.called(claim, calls)
            others = tuple(handler_id for handler_id in others if handler_id not in called)
            if all(handler.id in called for handler in self.route(event.type)):
                blocked_for = 0.0
            if not (waits or blocked_for or others or goes_on_in is not None):
                return Complete(claim.ref, results, (), milliseconds)
        if waits or ((failed or remote.failures) and not fatal and goes_on_in is None):
            waits += [blocked_for] if blocked_for else []
            waits += [] if goes_on_in is None else [goes_on_in]
            error = outcomes.error_text(failed, remote.failures)
            return Fail(claim.ref, error, min(waits, default=None), results, milliseconds)
        missing = outcomes.not_done(claim, others)
        handed_over = self.missing.hand_over(claim, missing, results) if missing else None
        if goes_on_in is not None:
            waiting = all(_waits_for_event(outcome) for _, outcome, _ in asleep) and (asleep or remote.event_waits)
            # The node of a missing handler may be back long before the sleeper goes on.
            goes_on_in = min(goes_on_in, goes_on_in if handed_over is None else handed_over.delay)
            return Release(claim.ref, min(goes_on_in, blocked_for or goes_on_in), results, WAITS if waiting else SLEEPS)
        if blocked_for:
            return Release(claim.ref, blocked_for, results, BREAKER_OPEN)
        if handed_over is not None:
            self.gave_away = claim.ref
            return handed_over
        return outcomes.unless_spent(claim, results, milliseconds)


async def _side_by_side(
    attempt: Attempt, run: RunHere, waits: AwaitOthers, plan: SharePlan, progress: EventProgress
) -> None:
    """Offer the handlers of other nodes first, and run those of this node meanwhile."""
    await progress.offer(plan.offers)
    waiting = asyncio.ensure_future(waits())
    try:
        await run(waiting if attempt.is_first else None)
        if attempt.winner is None:
            await progress.offer(())
            with progress.held():
                await waiting
    finally:
        waiting.cancel()


def _waits_for_event(outcome: HandlerOutcome) -> bool:
    return any(result.status is ResultStatus.WAITING for result in outcome.kept)


async def _one_by_one(
    attempt: Attempt, run: RunHere, waits: AwaitOthers, plan: SharePlan, progress: EventProgress
) -> None:
    """Run the handlers of this node, then offer the others. The lock of the handlers keeps those apart."""
    await run()
    if attempt.winner is None:
        await progress.offer(plan.offers)
        with progress.held():
            await waits()


def _completed_first(claim: Claim, attempt: Attempt, awaited: frozenset[str] = frozenset()) -> Complete:
    """Complete an event whose first value is enough. Handlers on other nodes that have not ended are stopped."""
    results = [*(result for _, _, result in attempt.calls), *attempt.stopped]
    known = {result.handler_id for result in results}
    for result in claim.results:
        if result.handler_id in awaited and result.handler_id not in known and result.status not in ENOUGH:
            status = ResultStatus.ABORTED if result.status is not ResultStatus.PENDING else ResultStatus.CANCELLED
            error = f"{status.capitalize()}: handler {attempt.winner} answered first"
            results.append(replace(result, status=status, error=error, worker_id=None, expires_ts=None))
    return Complete(claim.ref, tuple(results), (), outcomes.milliseconds(attempt.calls))
