"""What the outcomes of an attempt's handlers mean together: which results are stored, and when the event goes on."""

from __future__ import annotations

import random

from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Settlement
from durabus.model.statuses import SETTLED, STEPS, ResultStatus
from durabus.worker.attempt import HandlerCall, used_up
from durabus.worker.coordination import handler_of
from durabus.worker.execution import HandlerOutcome
from durabus.worker.handler import Handler
from durabus.worker.telemetry import log_failed_attempt


def results_of_sleepers(asleep: list[HandlerCall]) -> list[HandlerResult]:
    """Return what a sleep keeps, and that the handler is not done: it must not be forgotten if no node has it later."""
    results: list[HandlerResult] = []
    for handler, outcome, result in asleep:
        results += outcome.kept
        results.append(
            HandlerResult(
                handler_id=handler.id,
                status=ResultStatus.PENDING,
                attempts=max(result.attempts - 1, 0),
                execution_time_ms=outcome.milliseconds,
            )
        )
    return results


def is_fatal(claim: Claim, calls: list[HandlerCall]) -> bool:
    """Whether a handler ended, now or earlier, with an error that no further attempt will change."""
    return any(outcome.status is ResultStatus.UNRECOVERABLE for _, outcome, _ in calls) or any(
        result.status is ResultStatus.UNRECOVERABLE for result in claim.results
    )


def called(claim: Claim, calls: list[HandlerCall]) -> set[str]:
    """The ids of the handlers that were called, now or earlier. A timeout of the event may come before a call."""
    results = (*claim.results, *(result for _, _, result in calls))
    return {result.handler_id for result in results if result.status is not ResultStatus.PENDING}


def not_done(claim: Claim, handler_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the handlers that are left to run."""
    done = {result.handler_id for result in claim.results if result.status in SETTLED}
    return tuple(handler_id for handler_id in handler_ids if handler_id not in done)


def waits(event: Event, failed: list[HandlerCall], *, fatal: bool) -> list[float]:
    """Log every failed attempt, and return the seconds until each handler that the worker may call again.

    After a fatal error these are only the handlers that the event's timeout kept from being called.
    """
    waits = []
    for handler, outcome, _ in failed:
        delay = None if fatal and outcome.status is not ResultStatus.PENDING else delay_of(handler, outcome, event)
        # The text of an unrecoverable error says all. The log shows where any other last error was raised.
        traceback = None if outcome.status is ResultStatus.UNRECOVERABLE else (outcome.value or {}).get("traceback")
        log_failed_attempt(event, handler, outcome.error or "", delay, traceback)
        if delay is not None:
            waits.append(delay)
    return waits


def milliseconds(calls: list[HandlerCall]) -> float:
    """The time of all calls together."""
    return sum(outcome.milliseconds for _, outcome, _ in calls)


def delay_of(handler: Handler, outcome: HandlerOutcome, event: Event) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    if outcome.status is ResultStatus.UNRECOVERABLE or used_up(handler, event, event.attempts):
        return None
    if outcome.retry_after is not None:
        return outcome.retry_after
    return handler.retry.delay_before(event.attempts + 1, random.random)


def error_text(failed: list[HandlerCall], remote: tuple[str, ...] = ()) -> str:
    """Return the errors as one text. With several handlers, it names each."""
    if len(failed) == 1 and not remote:
        return failed[0][1].error or failed[0][1].status
    return "; ".join((*(f"{handler.id}: {outcome.error}" for handler, outcome, _ in failed), *remote))


def unless_spent(claim: Claim, results: tuple[HandlerResult, ...], milliseconds: float | None) -> Settlement:
    """Complete the event, or fail it if a handler failed earlier and will not run again.

    Such a handler is out of attempts, or no longer subscribed.
    """
    now_done = {result.handler_id for result in results}
    # A wait that its timeout ended, or that the handler did not need any more, says nothing about the handler.
    spent = [r for r in claim.results if r.status not in SETTLED | STEPS and r.handler_id not in now_done]
    has_result = {r.handler_id for r in claim.results if r.status not in STEPS} | now_done
    stopped = {handler_of(r): None for r in claim.results if r.status is ResultStatus.KEPT}
    errors = [
        f"{r.handler_id} had begun, and no node has it any more"
        if r.status is ResultStatus.PENDING and r.error is None
        else f"{r.handler_id} does not run again, its last error: {r.error or r.status}"
        for r in spent
    ]
    # A process that ended between two steps of a handler has left no result of the handler itself.
    errors += [f"{one} had begun, and no node has it any more" for one in stopped if one not in has_result]
    if not errors:
        return Complete(claim.ref, results, (), milliseconds)
    return Fail(claim.ref, "; ".join(errors), None, results, milliseconds)
