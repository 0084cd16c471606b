"""The transitions of an event. Every command in the table of docs/reference/lifecycle.md has one function here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from durabus.errors import NotADeadLetter
from durabus.lifecycle.handlers import end_handler_claims, logged, merge_results, stopped_until, void_handlers
from durabus.lifecycle.state import (
    NOT_DEAD,
    NOT_DONE,
    NOT_ELIGIBLE,
    NOT_EXPIRED,
    NOT_LIVE,
    NOT_OF_PROCESS,
    NOT_PROCESSING,
    NOT_YOURS,
    AbandonedClaim,
    Applied,
    EventCommand,
    EventState,
    Expire,
    Grant,
    HandlerState,
    Record,
    Refused,
    Renew,
    Requeue,
    Reset,
    Revoke,
    SettledClaim,
    Start,
)
from durabus.lifecycle.waits import without_waits
from durabus.model.claim import LEASE_EXPIRED, PROCESS_ENDED, ClaimRef, incarnation_of, takeover_delay
from durabus.model.event import Event, NewEvent
from durabus.model.limits import JOINT
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled
from durabus.model.statuses import DEAD_LETTER, HISTORY, LIVE, SETTLED, Action, EventStatus, ResultStatus


def publish(new: NewEvent, id_: int, now: float) -> Applied:
    """Return a new event, PENDING with no attempts, and its PUBLISHED entry."""
    event = Event(
        id=id_,
        event_id=new.event_id,
        bus=new.bus,
        type=new.type,
        payload_json=new.payload_json,
        metadata_json=new.metadata_json,
        tags=new.tags,
        priority=new.priority,
        max_attempts=new.max_attempts,
        parent_id=new.parent_id,
        idempotency_key=new.idempotency_key,
        created_ts=now,
        updated_ts=now,
        due_ts=now + new.delay,
    )
    return Applied(EventState(event), (Record(Action.PUBLISHED, event, now),))


def transition(state: EventState, command: EventCommand, now: float) -> Applied | Refused:
    """Return what ``command`` does to ``state`` at the time ``now``."""
    return _RULES[type(command)](state, command, now)


def _claim(state: EventState, command: Grant, now: float) -> Applied | Refused:
    """Claim an event that is PENDING and due. If its lease is over, it is taken back first, and may become FAILED."""
    taken: tuple[Record, ...] = ()
    if state.event.status is EventStatus.PROCESSING:
        expired = _expire(state, Expire(command.max_attempts), now)
        if isinstance(expired, Refused):
            return Refused(NOT_ELIGIBLE)
        state, taken = expired.state, expired.records
        if state.event.status is not EventStatus.PENDING:
            return expired
    event = state.event
    if event.status is not EventStatus.PENDING or event.due_ts > now:
        return Refused(NOT_ELIGIBLE)
    event = replace(
        event,
        status=EventStatus.PROCESSING,
        attempts=event.attempts + 1,
        fence=event.fence + 1,
        worker_id=command.worker_id,
        updated_ts=now,
        picked_ts=now,
        started_ts=None,
        expires_ts=now + command.lease,
    )
    claimed = EventState(event, command.token, state.handlers, state.settled)
    return Applied(claimed, (*taken, Record(Action.PICKED, event, now, command.worker_id)))


def _start(state: EventState, command: Start, now: float) -> Applied | Refused:
    if not _holds(state, command.ref):
        return Refused(NOT_YOURS)
    if state.event.started_ts is not None:
        return Applied(state)
    event = replace(state.event, started_ts=now, updated_ts=now)
    return Applied(replace(state, event=event), (Record(Action.STARTED, event, now, event.worker_id),))


def _renew(state: EventState, command: Renew, now: float) -> Applied | Refused:
    """Only the token decides: a late claim still holds the event alone until the event is taken back."""
    if not _holds(state, command.ref):
        return Refused(NOT_YOURS)
    return Applied(replace(state, event=replace(state.event, expires_ts=now + command.lease)))


def _complete(state: EventState, command: Complete, now: float) -> Applied | Refused:
    if not state.settles(command.ref):
        return _repeat(state, command.ref, (Action.COMPLETED, Action.COMPLETED_WITH_ERRORS))
    state = _as_held(state)
    handlers = without_waits(merge_results(state.handlers, command.results))
    fatal = command.errors or _unrecoverable(handlers)
    if handlers and not fatal and any(h.result.status not in SETTLED for h in handlers):
        return Refused(NOT_DONE)
    event = replace(
        state.event,
        status=EventStatus.COMPLETED_WITH_ERRORS if fatal else EventStatus.COMPLETED,
        errors=(*state.event.errors, JOINT.join(fatal)) if fatal else state.event.errors,
        updated_ts=now,
        due_ts=_due_again(state) if fatal else state.event.due_ts,
        expires_ts=None,
    )
    return _settled(command.ref, event, handlers, _terminal(event, handlers, command, now))


def _fail(state: EventState, command: Fail, now: float) -> Applied | Refused:
    if not state.settles(command.ref):
        return _repeat(state, command.ref, (Action.FAILED,))
    state = _as_held(state)
    event, handlers = state.event, merge_results(state.handlers, command.results)
    used_up = event.max_attempts is not None and event.attempts >= event.max_attempts
    if command.delay is None or used_up:
        event, handlers = _ended(state, command.error, now), without_waits(handlers)
        record = _terminal(event, handlers, command, now)
    else:
        due = max(now + command.delay, stopped_until(state.handlers, handlers))
        event = _pending_again(event, now, due=due, errors=(*event.errors, command.error))
        record = Record(
            Action.FAILED,
            event,
            now,
            state.event.worker_id,
            command.error,
            command.execution_time_ms,
            command.status_code,
            event.due_ts,
        )
    return _settled(command.ref, event, handlers, record)


def _release(state: EventState, command: Release, now: float) -> Applied | Refused:
    if not state.settles(command.ref):
        return _repeat(state, command.ref, (Action.RELEASED,))
    state = _as_held(state)
    handlers = merge_results(state.handlers, command.results)
    due = now if _met_meanwhile(state, command) else now + command.delay
    due = max(due, stopped_until(state.handlers, handlers))
    event = _pending_again(state.event, now, due=due, attempts=state.event.attempts - 1)
    record = Record(Action.RELEASED, event, now, state.event.worker_id, reason=command.reason)
    released = _settled(command.ref, event, handlers, record)
    if not command.until_children:
        return released
    return Applied(replace(released.state, waits_for_children=True), released.records)


def children_ended(state: EventState) -> EventState | None:
    """Return the state of an event that has no live child any more; None if the event does not wait for that.

    It is due since its release. Nothing is logged.
    """
    if not state.waits_for_children:
        return None
    return replace(state, event=replace(state.event, due_ts=state.event.updated_ts), waits_for_children=False)


def _met_meanwhile(state: EventState, command: Release) -> bool:
    """Return whether an event met one of the waits while the handlers ran: then the event is due at once."""
    waits = {result.handler_id for result in command.results if result.status is ResultStatus.WAITING}
    return bool(waits) and any(
        h.result.handler_id in waits and h.result.status is ResultStatus.KEPT for h in state.handlers
    )


def _cancel(state: EventState, command: Cancel, now: float) -> Applied | Refused:
    """End a claimed event that its worker does not begin."""
    if not state.settles(command.ref):
        return _repeat(state, command.ref, (Action.CANCELLED,))
    state = _as_held(state)
    handlers = without_waits(void_handlers(merge_results(state.handlers, command.results)))
    event = _cancelled(state.event, now)
    return _settled(command.ref, event, handlers, _terminal(event, handlers, command, now))


def _revoke(state: EventState, command: Revoke, now: float) -> Applied | Refused:
    """End a live event. The fence rises if a claim could still settle the event, because that claim is revoked."""
    if state.event.status not in LIVE:
        return Refused(NOT_LIVE)
    revoked = state.token is not None or state.abandoned is not None
    event = _cancelled(state.event, now, fence=state.event.fence + revoked)
    handlers = without_waits(void_handlers(state.handlers))
    record = _terminal(event, handlers, command, now)
    return Applied(EventState(event, None, handlers, state.settled), (record,))


def _expire(state: EventState, command: Expire, now: float) -> Applied | Refused:
    """Take back an event whose lease is over: PENDING again (ABANDONED), or FAILED after its last attempt.

    The attempt stays counted. The abandoned claim is kept until the event is claimed again, because its settlement
    still counts until then. A process that has ended loses its claims before their leases are over.
    """
    event = state.event
    if command.ended is not None:
        if event.status is not EventStatus.PROCESSING or incarnation_of(state.token or "") != command.ended:
            return Refused(NOT_OF_PROCESS)
        state = end_handler_claims(state, command.ended, now)
    elif event.status is not EventStatus.PROCESSING or event.expires_ts is None or event.expires_ts > now:
        return Refused(NOT_EXPIRED)
    error = f"{LEASE_EXPIRED if command.ended is None else PROCESS_ENDED} (worker {event.worker_id})"
    limit = event.max_attempts if event.max_attempts is not None else command.max_attempts
    if limit is not None and event.attempts >= limit:
        ended, handlers = _ended(state, error, now), without_waits(state.handlers)
        record = _terminal(ended, handlers, None, now)
        return Applied(EventState(ended, None, handlers, state.settled), (record,))
    due = now
    if command.ended is not None and event.expires_ts is not None:
        due = max(now, min(now + takeover_delay(event.errors), event.expires_ts))
    pending = _pending_again(event, now, due=due, errors=(*event.errors, error))
    record = Record(Action.ABANDONED, pending, now, event.worker_id, error)
    lost = (
        None if state.token is None else AbandonedClaim(state.token, event.worker_id, event.picked_ts, event.started_ts)
    )
    return Applied(EventState(pending, None, state.handlers, state.settled, lost), (record,))


def _requeue(state: EventState, _command: Requeue, now: float) -> Applied | Refused:
    """Reset attempts and errors and begin a new generation. Handlers and steps that succeeded do not run again.

    The event is not due while a handler that it lost with its end may still run.
    """
    event = state.event
    if event.status not in DEAD_LETTER:
        return Refused(NOT_DEAD)
    due = max(now, event.due_ts)
    event = _pending_again(event, now, due=due, errors=(), attempts=0, generation=event.generation + 1)
    kept = [h for h in state.handlers if h.result.status in SUCCESSES or h.result.fence]
    handlers = tuple(h if h.result.status in SUCCESSES else _anew(h) for h in kept)
    return Applied(EventState(event, None, handlers, state.settled), (Record(Action.REQUEUED, event, now),))


def _anew(handler: HandlerState) -> HandlerState:
    """Return the handler as if it had never run. Its fence stays, because a fence never falls."""
    result = handler.result
    return HandlerState(HandlerResult(handler_id=result.handler_id, status=ResultStatus.PENDING, fence=result.fence))


def _reset(state: EventState, command: Reset, now: float) -> Applied | Refused:
    """Invalidate the worker's token at once. The event gets its attempt back, because it did not fail."""
    if state.event.status is not EventStatus.PROCESSING:
        return Refused(NOT_PROCESSING)
    event = _pending_again(state.event, now, due=now, attempts=state.event.attempts - 1)
    record = Record(Action.RESET, event, now, state.event.worker_id, reason=command.reason)
    return Applied(EventState(event, None, state.handlers, state.settled), (record,))


def _unrecoverable(handlers: tuple[HandlerState, ...]) -> tuple[str, ...]:
    if not handlers:
        return ()
    return tuple(
        h.result.error or "unrecoverable error" for h in handlers if h.result.status is ResultStatus.UNRECOVERABLE
    )


def _holds(state: EventState, ref: ClaimRef) -> bool:
    """Return whether ``ref`` is the current claim. Every write that needs the event alone checks this."""
    return state.token == ref.token and state.event.fence == ref.fence and state.event.status is EventStatus.PROCESSING


def _as_held(state: EventState) -> EventState:
    """Return the state that a settlement ends. An abandonment is undone first, so that its attempt is not lost."""
    lost = state.abandoned
    if lost is None:
        return state
    event = replace(
        state.event,
        worker_id=lost.worker_id,
        picked_ts=lost.picked_ts,
        started_ts=lost.started_ts,
        errors=state.event.errors[:-1],
    )
    return EventState(event, None, state.handlers, state.settled)


def _repeat(state: EventState, ref: ClaimRef, actions: tuple[Action, ...]) -> Applied | Refused:
    last = state.settled
    if last is not None and last.token == ref.token and last.fence == ref.fence and last.action in actions:
        return Applied(state)
    return Refused(NOT_YOURS)


def _settled(ref: ClaimRef, event: Event, handlers: tuple[HandlerState, ...], record: Record) -> Applied:
    outcome = Settled(event.id, event.status, record.next_retry_ts)
    settled = SettledClaim(ref.token, ref.fence, record.action, outcome)
    return Applied(EventState(event, None, handlers, settled), (record,))


def _ended(state: EventState, error: str, now: float) -> Event:
    return replace(
        state.event,
        status=EventStatus.FAILED,
        errors=(*state.event.errors, error),
        updated_ts=now,
        due_ts=_due_again(state),
        expires_ts=None,
    )


def _due_again(state: EventState) -> float:
    """Return the ``due_ts`` of a dead letter: a requeue must not begin its handlers while they may still run."""
    return max(state.event.due_ts, stopped_until(state.handlers, ()))


def _cancelled(event: Event, now: float, **changes: Any) -> Event:
    return replace(event, status=EventStatus.CANCELLED, updated_ts=now, expires_ts=None, **changes)


def _pending_again(event: Event, now: float, *, due: float, **changes: Any) -> Event:
    return replace(
        event,
        status=EventStatus.PENDING,
        worker_id=None,
        updated_ts=now,
        due_ts=due,
        picked_ts=None,
        started_ts=None,
        expires_ts=None,
        **changes,
    )


def _terminal(
    event: Event, handlers: tuple[HandlerState, ...], command: Complete | Fail | Cancel | Revoke | None, now: float
) -> Record:
    ran = command if isinstance(command, Complete | Fail) else None
    return Record(
        _TERMINAL_ACTIONS[event.status],
        event,
        now,
        event.worker_id,
        None if event.status in HISTORY else event.errors[-1],
        None if ran is None else ran.execution_time_ms,
        None if ran is None else ran.status_code,
        None,
        tuple(logged(handler.result) for handler in handlers) if handlers else (),
        command.reason if isinstance(command, Complete | Cancel | Revoke) else None,
        command.handler_id if isinstance(command, Complete) else None,
    )


SUCCESSES = frozenset({ResultStatus.SUCCEEDED, ResultStatus.KEPT})
"""Results that a requeue keeps."""

_TERMINAL_ACTIONS = {
    EventStatus.COMPLETED: Action.COMPLETED,
    EventStatus.COMPLETED_WITH_ERRORS: Action.COMPLETED_WITH_ERRORS,
    EventStatus.FAILED: Action.FAILED,
    EventStatus.CANCELLED: Action.CANCELLED,
}

_RULES: dict[type, Callable[[EventState, Any, float], Applied | Refused]] = {
    Grant: _claim,
    Start: _start,
    Renew: _renew,
    Complete: _complete,
    Fail: _fail,
    Release: _release,
    Cancel: _cancel,
    Expire: _expire,
    Requeue: _requeue,
    Reset: _reset,
    Revoke: _revoke,
}


def check_requeue(ref: int | str, event: Event) -> None:
    """Raise ``NotADeadLetter`` unless the event is one, or the call repeats a requeue and the event has not ended
    since.
    """
    is_repeat = event.generation > 0 and event.status in LIVE
    if event.status not in DEAD_LETTER and not is_repeat:
        raise NotADeadLetter(ref, event.status)
