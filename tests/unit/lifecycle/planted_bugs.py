"""Broken versions of the lifecycle's rules: each one must be found by the explorer, or the explorer proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from durabus.lifecycle import handlers, transition
from durabus.lifecycle.state import (
    Applied,
    EventState,
    Expire,
    Grant,
    HandlerState,
    LockState,
    Record,
    Refused,
    Renew,
    Requeue,
    Reset,
    Revoke,
    Start,
)
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest, LockClaim, incarnation_of
from durabus.model.settlement import Cancel, Complete, Fail, Release
from durabus.model.statuses import Action, EventStatus

Outcome = Applied | Refused
Rule = Callable[[EventState, Any, float], Outcome]

LATER = 1e9


class PlantedBug(NamedTuple):
    """A way to break the lifecycle, and what the explorer must say about it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    rule: str


def _wrap(command: type, change: Callable[[Rule], Rule]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setitem(transition._RULES, command, change(transition._RULES[command]))


def _after(command: type, change: Callable[[EventState, Applied], Applied]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let the rule work and spoil its result."""

    def spoiled(rule: Rule) -> Rule:
        def spoil(state: EventState, asked: Any, now: float) -> Outcome:
            outcome = rule(state, asked, now)
            return outcome if isinstance(outcome, Refused) else change(state, outcome)

        return spoil

    return _wrap(command, spoiled)


def _before(command: type, change: Callable[[EventState, Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let the rule work on another command than the one that came."""
    return _wrap(command, lambda rule: lambda state, asked, now: rule(state, change(state, asked), now))


def _late(command: type) -> Callable[[pytest.MonkeyPatch], None]:
    """Let the rule believe that every lease is over."""
    return _wrap(command, lambda rule: lambda state, asked, _now: rule(state, asked, LATER))


def _changed(applied: Applied, **changes: Any) -> Applied:
    return replace(applied, state=replace(applied.state, event=replace(applied.state.event, **changes)))


def _changed_and_logged(applied: Applied, **changes: Any) -> Applied:
    records = tuple(replace(record, event=replace(record.event, **changes)) for record in applied.records)
    return replace(_changed(applied, **changes), records=records)


def _any_fence(state: EventState, command: Any) -> Any:
    return replace(command, ref=ClaimRef(1, command.ref.token, state.event.fence))


def _any_token(state: EventState, command: Any) -> Any:
    return command if state.token is None else replace(command, ref=ClaimRef(1, state.token, command.ref.fence))


def _no_fence_advance(state: EventState, applied: Applied) -> Applied:
    return _changed_and_logged(applied, fence=state.event.fence)


def _no_attempt_counted(state: EventState, applied: Applied) -> Applied:
    return _changed_and_logged(applied, attempts=state.event.attempts)


def _repeat_logged(state: EventState, applied: Applied) -> Applied:
    return applied if applied.records else replace(applied, records=(Record(Action.COMPLETED, state.event, 0.0),))


def _revive_failed(rule: Rule) -> Rule:
    def revive(state: EventState, command: Any, now: float) -> Outcome:
        if state.event.status is EventStatus.FAILED:
            state = replace(state, event=replace(state.event, status=EventStatus.PENDING))
        return rule(state, command, now)

    return revive


def _any_process(rule: Rule) -> Rule:
    def take(state: EventState, command: Any, now: float) -> Outcome:
        ended = None if command.ended is None else incarnation_of(state.token or "")
        return rule(state, replace(command, ended=ended), now)

    return take


def _complete_unsettled(rule: Rule) -> Rule:
    def complete(state: EventState, command: Any, now: float) -> Outcome:
        outcome = rule(state, command, now)
        return rule(replace(state, handlers=()), command, now) if isinstance(outcome, Refused) else outcome

    return complete


def _accept_overtaken(rule: Rule) -> Rule:
    def accept(state: EventState, command: Any, now: float) -> Outcome:
        ref = command.ref
        if state.token is not None and ref.fence == state.event.fence - 1:
            command = replace(command, ref=ClaimRef(1, state.token, state.event.fence))
        return rule(state, command, now)

    return accept


def _forget_abandoned(_state: EventState, applied: Applied) -> Applied:
    return replace(applied, state=replace(applied.state, abandoned=None))


def _keep_late_error(state: EventState, applied: Applied) -> Applied:
    return applied if state.abandoned is None else _changed_and_logged(applied, errors=state.event.errors)


def _keep_late_attempt(state: EventState, applied: Applied) -> Applied:
    return applied if state.abandoned is None else _changed(applied, attempts=state.event.attempts)


def _renew_abandoned(rule: Rule) -> Rule:
    def renew(state: EventState, command: Any, now: float) -> Outcome:
        lost = state.abandoned
        if lost is None or lost.token != command.ref.token:
            return rule(state, command, now)
        event = replace(state.event, status=EventStatus.PROCESSING, expires_ts=now + command.lease)
        return Applied(replace(state, event=event, token=lost.token, abandoned=None))

    return renew


def _keep_abandoned(state: EventState, applied: Applied) -> Applied:
    return replace(applied, state=replace(applied.state, abandoned=state.abandoned))


def _accept_revoked(rule: Rule) -> Rule:
    def accept(state: EventState, command: Any, now: float) -> Outcome:
        if state.event.status is EventStatus.CANCELLED and state.settled is None:
            event = replace(state.event, status=EventStatus.PROCESSING, fence=command.ref.fence)
            state = EventState(event, command.ref.token)
        return rule(state, command, now)

    return accept


def _cancel_ended(rule: Rule) -> Rule:
    def cancel(state: EventState, command: Any, now: float) -> Outcome:
        return rule(replace(state, event=replace(state.event, status=EventStatus.PENDING)), command, now)

    return cancel


def _keep_handler_claims(state: EventState, applied: Applied) -> Applied:
    return replace(applied, state=replace(applied.state, handlers=state.handlers))


def _forget_settlement(_state: EventState, applied: Applied) -> Applied:
    return replace(applied, state=replace(applied.state, settled=None))


EVENT_BUGS = {
    "complete without fence check": PlantedBug(_before(Complete, _any_fence), "a stale write is accepted"),
    "complete without token check": PlantedBug(_before(Complete, _any_token), "a stale write is accepted"),
    "fail without fence check": PlantedBug(_before(Fail, _any_fence), "a stale write is accepted"),
    "release without token check": PlantedBug(_before(Release, _any_token), "a stale write is accepted"),
    "renew without token check": PlantedBug(_before(Renew, _any_token), "a stale write is accepted"),
    "start without fence check": PlantedBug(_before(Start, _any_fence), "a stale write is accepted"),
    "the end of any process takes every claim": PlantedBug(_wrap(Expire, _any_process), "a live claim is displaced"),
    "expire without expiry check": PlantedBug(_late(Expire), "a live claim is displaced"),
    "claim without expiry check": PlantedBug(_late(Grant), "a live claim is displaced"),
    "fence not advanced": PlantedBug(_after(Grant, _no_fence_advance), "a fence that is not larger"),
    "attempts not counted": PlantedBug(_after(Grant, _no_attempt_counted), "contradicts the log"),
    "attempts not counted, nor logged": PlantedBug(
        _after(Grant, lambda state, applied: _changed(applied, attempts=state.event.attempts)), "the log folds to"
    ),
    "terminal not absorbing": PlantedBug(_wrap(Grant, _revive_failed), "FAILED is left by Grant"),
    "requeue keeps the token": PlantedBug(
        _after(Requeue, lambda _, applied: replace(applied, state=replace(applied.state, token="now"))),
        "a token and PROCESSING belong together",
    ),
    "requeue keeps the generation": PlantedBug(
        _after(Requeue, lambda state, applied: _changed(applied, generation=state.event.generation)),
        "begins no new generation",
    ),
    "requeue keeps the errors": PlantedBug(
        _after(Requeue, lambda state, applied: _changed(applied, errors=state.event.errors)), "errors"
    ),
    "release lowers the fence": PlantedBug(
        _after(Release, lambda state, applied: _changed(applied, fence=state.event.fence - 1)),
        "something other than a grant moved the fence",
    ),
    "release costs an attempt": PlantedBug(
        _after(Release, lambda state, applied: _changed(applied, attempts=state.event.attempts)), "the log folds to"
    ),
    "reset costs an attempt": PlantedBug(
        _after(Reset, lambda state, applied: _changed(applied, attempts=state.event.attempts)), "the log folds to"
    ),
    "repeat logs twice": PlantedBug(_after(Complete, _repeat_logged), "writes again"),
    "repeat refused": PlantedBug(_after(Fail, _forget_settlement), "the repeat of an applied call is refused"),
    "reset forgets the settlement": PlantedBug(_after(Reset, _forget_settlement), "forgot how"),
    "start logs twice": PlantedBug(
        _wrap(
            Start,
            lambda rule: (
                lambda state, command, now: rule(
                    replace(state, event=replace(state.event, started_ts=None)), command, now
                )
            ),
        ),
        "wrote again",
    ),
    "expire leaves no error": PlantedBug(
        _after(Expire, lambda state, applied: _changed(applied, errors=state.event.errors)), "errors"
    ),
    "fail ignores the limit": PlantedBug(
        _wrap(
            Fail,
            lambda rule: (
                lambda state, command, now: rule(
                    replace(state, event=replace(state.event, max_attempts=None)), command, now
                )
            ),
        ),
        "attempts are used up",
    ),
    "complete logs nothing": PlantedBug(
        _after(Complete, lambda _, applied: replace(applied, records=())), "the log folds to"
    ),
    "late settlement accepted after a newer grant": PlantedBug(
        _wrap(Complete, _accept_overtaken), "a stale write is accepted"
    ),
    "late settlement refused": PlantedBug(_after(Expire, _forget_abandoned), "an abandoned claim is forgotten"),
    "late success leaves the lease-expired error": PlantedBug(_after(Complete, _keep_late_error), "where one in time"),
    "late release costs an attempt": PlantedBug(_after(Release, _keep_late_attempt), "the log folds to"),
    "abandoned claim renewed": PlantedBug(_wrap(Renew, _renew_abandoned), "a stale write is accepted"),
    "cancellation leaves the fence": PlantedBug(_after(Revoke, _no_fence_advance), "must advance the fence"),
    "cancellation leaves an abandoned claim": PlantedBug(_after(Revoke, _keep_abandoned), "keeps an abandoned claim"),
    "late result overrides a cancellation": PlantedBug(_wrap(Complete, _accept_revoked), "a stale write is accepted"),
    "cancel without fence check": PlantedBug(_before(Cancel, _any_fence), "a stale write is accepted"),
    "cancellation of an ended event": PlantedBug(_wrap(Revoke, _cancel_ended), "although the table refuses it"),
    "renewed by nobody": PlantedBug(_wrap(Renew, lambda _: lambda *_: Refused("no")), "refused although"),
}


def _held_by_token_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(state: EventState, claim: HandlerClaim) -> HandlerState | None:
        row = handlers._find(state, claim.handler_id)
        processing = state.event.status is EventStatus.PROCESSING
        return row if row is not None and processing and row.token == claim.token else None

    monkeypatch.setattr(handlers, "_held", held)


def _held_by_fence_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(state: EventState, claim: HandlerClaim) -> HandlerState | None:
        row = handlers._find(state, claim.handler_id)
        processing = state.event.status is EventStatus.PROCESSING
        return row if row is not None and processing and row.result.fence == claim.fence else None

    monkeypatch.setattr(handlers, "_held", held)


def _claim_handler(
    change: Callable[[EventState, tuple[EventState, HandlerClaim]], tuple[EventState, HandlerClaim]],
    *,
    late: bool = False,
) -> Callable[[pytest.MonkeyPatch], None]:
    rule = handlers.claim_handler

    def spoil(
        state: EventState, request: HandlerClaimRequest, now: float, lock_key: str | None
    ) -> tuple[EventState, HandlerClaim] | None:
        got = rule(state, request, LATER if late else now, lock_key)
        return None if got is None else change(state, got)

    return lambda monkeypatch: monkeypatch.setattr(handlers, "claim_handler", spoil)


def _first_fence_again(before: EventState, got: tuple[EventState, HandlerClaim]) -> tuple[EventState, HandlerClaim]:
    state, claim = got
    if state is before:
        return got
    rows = tuple(replace(row, result=replace(row.result, fence=1)) for row in state.handlers)
    return replace(state, handlers=rows), claim


def _forget_lock(before: EventState, got: tuple[EventState, HandlerClaim]) -> tuple[EventState, HandlerClaim]:
    state, claim = got
    if state is before:
        return got
    return replace(state, handlers=tuple(replace(row, lock_key=None) for row in state.handlers)), claim


def _release_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = handlers.release_handler

    def spoil(state: EventState, claim: HandlerClaim) -> Outcome:
        outcome = rule(state, claim)
        if isinstance(outcome, Refused):
            return outcome
        rows = tuple(replace(row, result=replace(row.result, attempts=5)) for row in outcome.state.handlers)
        return replace(outcome, state=replace(outcome.state, handlers=rows))

    monkeypatch.setattr(handlers, "release_handler", spoil)


def _forget_fences(rule: Rule) -> Rule:
    def forget(state: EventState, command: Any, now: float) -> Outcome:
        outcome = rule(state, command, now)
        return outcome if isinstance(outcome, Refused) else replace(outcome, state=replace(outcome.state, handlers=()))

    return forget


HANDLER_BUGS = {
    "handler written without fence check": PlantedBug(_held_by_token_only, "a stale write is accepted"),
    "handler written without token check": PlantedBug(_held_by_fence_only, "not answered alike"),
    "handler claimed while it is held": PlantedBug(_claim_handler(lambda _, got: got, late=True), "is displaced"),
    "handler fence begins again": PlantedBug(_claim_handler(_first_fence_again), "a fence that is not larger"),
    "handler claimed without the lock of its bus": PlantedBug(
        _claim_handler(_forget_lock), "must be kept for a handler"
    ),
    "handler claimed without the event": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(handlers, "holds_event", lambda *_: True), "does not hold the event"
    ),
    "handler release costs an attempt": PlantedBug(_release_costs, "changed the attempts"),
    "complete with unsettled handlers": PlantedBug(
        _wrap(Complete, _complete_unsettled), "applied although the table refuses it"
    ),
    "cancellation leaves the claims on handlers": PlantedBug(
        _after(Revoke, _keep_handler_claims), "outlives its cancelled event"
    ),
    "requeue begins beside a handler that may still run": PlantedBug(
        _after(Requeue, lambda _, applied: _changed_and_logged(applied, due_ts=0.0)), "may still run"
    ),
    "retry begins beside a handler that it stopped": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(transition, "stopped_until", lambda *_: 0.0), "may still run"
    ),
    "requeue forgets handler fences": PlantedBug(_wrap(Requeue, _forget_fences), "h1"),
}


def _lock_late(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = handlers.claim_lock
    monkeypatch.setattr(handlers, "claim_lock", lambda lock, **asked: rule(lock, **{**asked, "now": LATER}))


def _lock_fence_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = handlers.claim_lock

    def spoil(lock: LockState | None, **asked: Any) -> LockState | Refused:
        return rule(lock, **{**asked, "fence": 1 if lock is None else lock.fence})

    monkeypatch.setattr(handlers, "claim_lock", spoil)


def _lock_renewed_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = handlers.renew_lock

    def spoil(lock: LockState | None, claim: LockClaim, lease: float, now: float) -> LockState | Refused:
        return rule(lock, claim if lock is None else replace(claim, fence=lock.fence), lease, now)

    monkeypatch.setattr(handlers, "renew_lock", spoil)


def _lock_released_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = handlers.release_lock

    def spoil(lock: LockState | None, claim: LockClaim) -> LockState | Refused:
        return rule(lock, claim if lock is None else replace(claim, fence=lock.fence, token=lock.token or ""))

    monkeypatch.setattr(handlers, "release_lock", spoil)


def _lock_release_lowers_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = handlers.release_lock

    def spoil(lock: LockState | None, claim: LockClaim) -> LockState | Refused:
        after = rule(lock, claim)
        return after if isinstance(after, Refused) else replace(after, fence=0)

    monkeypatch.setattr(handlers, "release_lock", spoil)


LOCK_BUGS = {
    "lock claimed while it is held": PlantedBug(_lock_late, "a live claim on the lock is displaced"),
    "lock fence not advanced": PlantedBug(_lock_fence_stands, "a fence that is not larger"),
    "lock renewed without fence check": PlantedBug(_lock_renewed_by_token, "several claims on one lock"),
    "lock released by anybody": PlantedBug(_lock_released_by_all, "a stale write is accepted"),
    "lock release lowers the fence": PlantedBug(_lock_release_lowers_fence, "keep the fence"),
}
