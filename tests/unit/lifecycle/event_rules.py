"""What must hold for an event in every state and over every step: the rules the explorer checks.

They are written from the lifecycle's table and the store contract, not from the code that they judge.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import astuple, replace
from tests.unit.lifecycle.explorer import NOW, Broken
from tests.unit.lifecycle.part import PROCESS, alive, live_claim

from durabus.lifecycle.state import (
    Applied,
    EventCommand,
    EventState,
    Expire,
    Grant,
    Renew,
    Requeue,
    Reset,
    Revoke,
    Start,
)
from durabus.lifecycle.transition import transition
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Cancel, Complete, Fail, Release
from durabus.model.statuses import DEAD_LETTER, LIVE, SETTLED, TERMINAL, Action, EventStatus, ResultStatus

MAX_ATTEMPTS = 2

HELD, LATE, REPEATED, STALE = "held", "late", "repeated", "stale"
"""How the claim of a command relates to the event: it is the current one, the one that was abandoned and is still the
newest, the one that settled last, or none of them."""
_KINDS = {
    Complete: (Action.COMPLETED, Action.COMPLETED_WITH_ERRORS),
    Fail: (Action.FAILED,),
    Release: (Action.RELEASED,),
    Cancel: (Action.CANCELLED,),
}
_ERRORS_SHORT_OF_ATTEMPTS = {
    EventStatus.PENDING: (0,),
    EventStatus.PROCESSING: (1,),
    EventStatus.COMPLETED: (1,),
    EventStatus.COMPLETED_WITH_ERRORS: (0,),
    EventStatus.FAILED: (0,),
    EventStatus.CANCELLED: (0, 1),
}
"""Every attempt that ended without success left one error; the one that runs, succeeded or was cancelled left none."""


class Folded(NamedTuple):
    """An event as its log describes it."""

    status: EventStatus
    attempts: int
    generation: int
    fence: int


def standing(state: EventState, command: EventCommand) -> str:
    """How the claim that ``command`` carries relates to the event."""
    if not isinstance(command, Start | Renew | Complete | Fail | Release | Cancel):
        return HELD
    shown = (command.ref.token, command.ref.fence)
    if state.event.status is EventStatus.PROCESSING and shown == (state.token, state.event.fence):
        return HELD
    lost = state.abandoned
    if lost is not None and shown == (lost.token, state.event.fence) and type(command) in _KINDS:
        return LATE
    last = state.settled
    if last is not None and shown == (last.token, last.fence) and last.action in _KINDS.get(type(command), ()):
        return REPEATED
    return STALE


def allowed(state: EventState, command: EventCommand, how: str) -> bool:
    """What the lifecycle's table says."""
    event = state.event
    over = event.status is EventStatus.PROCESSING and not alive(event.expires_ts)
    match command:
        case Grant():
            return over or (event.status is EventStatus.PENDING and event.due_ts <= NOW)
        case Expire(ended=None):
            return over
        case Expire():
            return event.status is EventStatus.PROCESSING and command.ended == PROCESS
        case Requeue():
            return event.status in DEAD_LETTER
        case Reset():
            return event.status is EventStatus.PROCESSING
        case Revoke():
            return event.status in LIVE
        case Complete() if how in (HELD, LATE):
            return _done(state, command)
        case _:
            return how != STALE


def check_step(before: EventState, command: EventCommand, applied: Applied, how: str) -> None:
    """The rules about what an applied command may change."""
    after = applied.state
    if how == STALE:
        raise Broken("a stale write is accepted")
    if how == REPEATED or _started_already(before, command):
        if applied.records or after != before:
            raise Broken("the repeat of an applied call wrote again")
        return
    _check_displacement(before, command, after)
    _check_fence(before, command, applied)
    _check_terminal(before, command, after)
    _check_log(before, applied)
    _check_repeat(before, command, after)
    _check_late(before, command, after, how)
    if after.event.status is EventStatus.CANCELLED and any(row.token is not None for row in after.handlers):
        raise Broken("a claim on a handler outlives its cancelled event")


def check_state(state: EventState) -> None:
    """Check the rules about a state by itself."""
    event = state.event
    if (state.token is None) is (event.status is EventStatus.PROCESSING):
        raise Broken(f"a token and PROCESSING belong together, not {state.token} and {event.status}")
    if state.abandoned is not None and event.status is not EventStatus.PENDING:
        raise Broken(f"an abandoned claim is remembered beyond its event's return: {event.status}")
    if (event.expires_ts is None) is (event.status is EventStatus.PROCESSING):
        raise Broken(f"a lease and PROCESSING belong together, not {event.expires_ts} and {event.status}")
    if event.attempts - len(event.errors) not in _ERRORS_SHORT_OF_ATTEMPTS[event.status]:
        raise Broken(f"{event.status} after {event.attempts} attempts has {len(event.errors)} errors")
    if not 0 <= event.attempts <= MAX_ATTEMPTS:
        raise Broken(f"{event.attempts} attempts are outside 0 to {MAX_ATTEMPTS}")
    if event.status is EventStatus.PENDING and event.attempts == MAX_ATTEMPTS:
        raise Broken("an event whose attempts are used up waits for another one")


def fold(folded: Folded, entry: LogEntry) -> Folded:
    """Return the event after ``entry``, derived from its action. The entry's own fields must agree."""
    status, attempts, generation, fence = folded
    match entry.action:
        case Action.PICKED:
            told = Folded(EventStatus.PROCESSING, attempts + 1, generation, fence + 1)
        case Action.STARTED:
            told = folded
        case Action.COMPLETED | Action.COMPLETED_WITH_ERRORS | Action.CANCELLED:
            revoked = entry.action is Action.CANCELLED and entry.fence == fence + 1
            told = Folded(EventStatus(entry.action.value), attempts, generation, fence + revoked)
        case Action.FAILED:
            told = Folded(entry.status, attempts, generation, fence)
        case Action.RELEASED | Action.RESET:
            told = Folded(EventStatus.PENDING, attempts - 1, generation, fence)
        case Action.ABANDONED:
            told = Folded(EventStatus.PENDING, attempts, generation, fence)
        case Action.REQUEUED:
            told = Folded(EventStatus.PENDING, 0, generation + 1, fence)
        case Action.PUBLISHED:
            told = Folded(EventStatus.PENDING, 0, 0, 0)
    if told != (entry.status, entry.attempt, entry.generation, entry.fence):
        raise Broken(
            f"the {entry.action} entry contradicts the log before it: {status} {attempts} {generation} {fence}"
        )
    return told


def told_by(state: EventState) -> Folded:
    """Return what a fold of the whole log must give."""
    event = state.event
    return Folded(event.status, event.attempts, event.generation, event.fence)


def _done(state: EventState, command: Complete) -> bool:
    statuses = {row.result.handler_id: row.result.status for row in state.handlers}
    statuses.update((result.handler_id, result.status) for result in command.results)
    of_no_use = bool(command.errors) or ResultStatus.UNRECOVERABLE in statuses.values()
    return of_no_use or all(status in SETTLED or status is ResultStatus.WAITING for status in statuses.values())


def _started_already(before: EventState, command: EventCommand) -> bool:
    return isinstance(command, Start) and before.event.started_ts is not None


def _check_displacement(before: EventState, command: EventCommand, after: EventState) -> None:
    held = live_claim(before)
    gone = held is not None and live_claim(after) != held
    own = isinstance(command, Complete | Fail | Release | Cancel | Reset | Revoke)
    by_death = isinstance(command, Expire) and command.ended == PROCESS
    if gone and not own and not by_death:
        raise Broken("a live claim is displaced by somebody else")


def _check_fence(before: EventState, command: EventCommand, applied: Applied) -> None:
    after = applied.state
    if any(record.action is Action.PICKED for record in applied.records):
        if after.event.fence <= before.event.fence:
            raise Broken("a claim is granted with a fence that is not larger")
        if not isinstance(command, Grant) or after.token != command.token:
            raise Broken("a claim is granted to another token than the one that asked")
    elif isinstance(command, Revoke):
        claimed = before.token is not None or before.abandoned is not None
        if after.event.fence != before.event.fence + claimed:
            raise Broken("a cancellation must advance the fence if it revokes a claim, and only then")
    elif after.event.fence != before.event.fence:
        raise Broken("something other than a grant moved the fence")


def _check_terminal(before: EventState, command: EventCommand, after: EventState) -> None:
    if before.event.status in TERMINAL and after.event.status is not before.event.status:
        if not isinstance(command, Requeue):
            raise Broken(f"{before.event.status} is left by {type(command).__name__}")
        if after.event.generation != before.event.generation + 1:
            raise Broken("a requeue begins no new generation")
    elif after.event.generation != before.event.generation:
        raise Broken("something other than a requeue began a generation")


def _check_repeat(before: EventState, command: EventCommand, after: EventState) -> None:
    """Whatever ends a claim by its holder is answered again, until the next one does; nothing else touches that."""
    if not isinstance(command, Complete | Fail | Release | Cancel):
        if after.settled != before.settled:
            raise Broken(f"{type(command).__name__} forgot how the last claim was settled")
        return
    if transition(after, command, NOW) != Applied(after):
        raise Broken("the repeat of an applied call is refused, or writes again")
    if after.settled is None or after.settled.outcome.status is not after.event.status:
        raise Broken("the answer of a settlement is not the event's status")


def _check_late(before: EventState, command: EventCommand, after: EventState, how: str) -> None:
    """An abandoned claim ends as it would have ended in time: its attempt was not lost."""
    lost, event = before.abandoned, before.event
    if isinstance(command, Expire) and after.event.status is EventStatus.PENDING:
        expected = (before.token, event.worker_id, event.picked_ts, event.started_ts)
        if after.abandoned is None or astuple(after.abandoned) != expected:
            raise Broken("an abandoned claim is forgotten")
    elif after.abandoned is not None:
        raise Broken(f"{type(command).__name__} keeps an abandoned claim alive")
    if how != LATE or lost is None:
        return
    held = replace(
        before.event,
        status=EventStatus.PROCESSING,
        worker_id=lost.worker_id,
        picked_ts=lost.picked_ts,
        started_ts=lost.started_ts,
        expires_ts=NOW,
        errors=before.event.errors[:-1],
    )
    in_time = transition(EventState(held, lost.token, before.handlers, before.settled), command, NOW)
    if not isinstance(in_time, Applied) or in_time.state != after:
        raise Broken("a late settlement does not lead where one in time does")


def _check_log(before: EventState, applied: Applied) -> None:
    folded = told_by(before)
    for entry in applied.entries:
        folded = fold(folded, entry)
    if folded != told_by(applied.state):
        raise Broken(f"the log folds to {folded}, the event is {told_by(applied.state)}")
