"""One event with its handlers: every message that could arrive, in every state."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.lifecycle.event_rules import LATE, MAX_ATTEMPTS, REPEATED, allowed, check_state, check_step, standing
from tests.unit.lifecycle.explorer import FENCE, LEASE, NOW, OVER, Broken, Tally
from tests.unit.lifecycle.handler_model import BUS_LOCK, HandlerModel
from tests.unit.lifecycle.lock_model import alive as lock_alive
from tests.unit.lifecycle.part import (
    LOST,
    NEW,
    OTHER_PROCESS,
    PROCESS,
    SETTLED_LAST,
    SHAPES,
    Effect,
    Move,
    Part,
    alive,
    event_claim,
    find_row,
    live_handler_claim,
    renamed,
    still_running,
)
from tests.unit.lifecycle.wait_model import WaitModel, check_waits

from durabus.lifecycle import handlers, transition
from durabus.lifecycle.state import (
    Applied,
    EventCommand,
    EventState,
    Expire,
    Grant,
    Refused,
    Renew,
    Requeue,
    Reset,
    Revoke,
    Start,
)
from durabus.model.event import new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Release
from durabus.model.statuses import DEAD_LETTER, LIVE, TERMINAL, Action, EventStatus, ResultStatus

RETRY_DELAY = 5.0
LAST_GENERATION = 1


class EventModel:
    """One event and ``handler_ids``.

    ``serial``: the handlers exclude each other by a lock. ``own_limit``: ``max_attempts`` is the event's own, else the
    workers bring it. ``starts``: workers say when they begin. ``waits``: a handler of the event waits for another one.
    ``careless`` names what a badly composed store leaves out.
    """

    def __init__(
        self,
        handler_ids: tuple[str, ...] = (),
        *,
        serial: bool = False,
        own_limit: bool = True,
        starts: bool = True,
        waits: bool = False,
        careless: str = "",
    ) -> None:
        self.tally = Tally()
        self._starts = starts
        self._handler_ids = handler_ids
        self._handlers = [
            HandlerModel(handler_id, self.tally, serial=serial, careless=careless) for handler_id in handler_ids
        ]
        self._waits = WaitModel(self.tally, careless) if waits else None
        self._serial = serial
        self._own_limit = own_limit
        self._asked_limit = None if own_limit else MAX_ATTEMPTS
        self._commands = self._all_commands()
        self._writes = [(shape, _writes(*shape)) for shape in SHAPES]
        self._trying = ""

    @property
    def trying(self) -> str:
        """The step that is being tried."""
        waits = "" if self._waits is None else self._waits.trying
        return self._trying or next((handler.trying for handler in self._handlers if handler.trying), waits)

    def start(self) -> Part:
        """Return the state of an event that was just published."""
        new = new_event("order.placed", max_attempts=MAX_ATTEMPTS if self._own_limit else None)
        return Part(transition.publish(new, 1, NOW).state, None, False, frozenset())

    def check(self, part: Part) -> None:
        """Check the rules about a state by itself."""
        check_state(part.state)
        check_waits(part)
        valid = [row.result.handler_id for row in part.state.handlers if live_handler_claim(row)]
        if self._serial and len(valid) > 1:
            raise Broken(f"serial handlers have a valid claim each: {valid}")
        if self._serial and valid and not lock_alive(part.lock):
            raise Broken(f"the valid claim on {valid} goes without its lock")
        may_run = bool(valid) and part.state.event.status in LIVE
        if handlers.runs_under(part.state, BUS_LOCK, NOW) is not may_run:
            raise Broken(
                f"the lock of the bus must be {'kept for' if may_run else 'free: no valid claim on'} a handler"
            )

    def moves(self, part: Part) -> list[tuple[str, Part]]:
        """Return every step that changes something."""
        return [(move.name, move.after) for move in self.effects(part)]

    def effects(self, part: Part) -> list[Move]:
        """Return every step that changes something, with what it means for a lock that goes with the claim."""
        state = part.state
        found: list[Move] = []
        for name, command in self._commands:
            found += self._command(part, name, command)
        last = state.settled
        newest = state.token is not None or state.abandoned is not None
        counted = (SHAPES[0] if newest else None, None if last is None else (last.token, last.fence))
        for shape, writes in self._writes:
            if shape in counted:
                for name, command in writes:
                    found += self._command(part, name, command)
            else:
                self._check_refused(state, writes)
        self._trying = ""
        for handler in self._handlers:
            found += handler.moves(part)
            handler.trying = ""
        if self._waits is not None:
            found += self._waits.moves(part)
            self._waits.trying = ""
        found += self._time(part)
        return [move for move in found if move.after != part]

    def _all_commands(self) -> list[tuple[str, EventCommand]]:
        """Claims by a new request and by late doubles of old ones, settlements with results, the administrator."""
        limit = self._asked_limit
        tokens = (NEW, SETTLED_LAST)
        found: list[tuple[str, EventCommand]] = [
            (f"claim by {token}", Grant("w", token, LEASE, limit)) for token in tokens
        ]
        found += [
            ("the process of the claim ends", Expire(limit, PROCESS)),
            ("another process ends", Expire(limit, OTHER_PROCESS)),
        ]
        found += [("expire", Expire(limit)), ("requeue", Requeue()), ("reset", Reset("admin"))]
        found.append(("revoke", Revoke("not wanted")))
        found += self._waits.commands() if self._waits is not None else []
        return found + self._writes_with_results()

    def _writes_with_results(self) -> list[tuple[str, EventCommand]]:
        if not self._handler_ids:
            return []
        ref = event_claim(*SHAPES[0])
        done = tuple(HandlerResult(handler_id=h, status=ResultStatus.SUCCEEDED) for h in self._handler_ids)
        found: list[tuple[str, EventCommand]] = [("complete with results", Complete(ref, results=done))]
        for handler_id in self._handler_ids:
            failed = HandlerResult(handler_id=handler_id, status=ResultStatus.TRANSIENT, error="boom")
            found += [
                (f"fail with the result of {handler_id}", Fail(ref, "boom", RETRY_DELAY, results=(failed,))),
                (f"release with the result of {handler_id}", Release(ref, results=(failed,))),
            ]
        return found

    def _beyond_bounds(self, state: EventState, command: EventCommand) -> bool:
        """Return whether no caller sends the command."""
        match command:
            case Requeue():
                return state.event.status in DEAD_LETTER and state.event.generation == LAST_GENERATION
            case Start():
                return not self._starts
            case Fail() | Release():
                return self._worker_would_not(state, command)
            case _:
                return False

    def _worker_would_not(self, state: EventState, command: Fail | Release) -> bool:
        """Return whether no worker sends the command: it repeats a success, or exceeds the worker's attempt limit."""
        used_up = state.event.attempts >= MAX_ATTEMPTS and not self._own_limit
        if isinstance(command, Fail) and command.delay is not None and used_up:
            return True
        rows = (find_row(state, result.handler_id) for result in command.results)
        return any(row is not None and row.result.status is ResultStatus.SUCCEEDED for row in rows)

    def _check_refused(self, state: EventState, writes: list[tuple[str, EventCommand]]) -> None:
        """The bulk of all messages: those that carry neither the current claim nor the one settled last."""
        for self._trying, command in writes:
            if not isinstance(transition.transition(state, command, NOW), Refused):
                raise Broken("a stale write is accepted")
            self.tally.refused[type(command).__name__] += 1
        self.tally.seen["stale write"] += len(writes)

    def _command(self, part: Part, name: str, command: EventCommand) -> list[Move]:
        state = part.state
        if self._beyond_bounds(state, command):
            return []
        self._trying = name
        if self._waits is not None:
            command = self._waits.composed(part, command)
        how = standing(state, command)
        outcome = transition.transition(state, command, NOW)
        if isinstance(outcome, Refused):
            self.tally.refused[type(command).__name__] += 1
            if allowed(state, command, how):
                raise Broken(f"refused although the table allows it: {outcome.reason}")
            return []
        check_step(state, command, outcome, how)
        if self._waits is not None:
            self._waits.check_step(state, command, outcome.state, how)
        if not allowed(state, command, how):
            raise Broken("applied although the table refuses it")
        effect = _effect(state, command, outcome)
        if effect is Effect.TAKE and part.stopped:
            raise Broken(f"the event is claimed while {sorted(part.stopped)} may still run")
        self.tally.seen["repeat answered"] += how == REPEATED
        self.tally.seen["late settlement"] += how == LATE
        self._count(state, command, effect)
        return [Move(name, self._next(part, outcome), effect)]

    def _count(self, state: EventState, command: EventCommand, effect: Effect) -> None:
        seen = self.tally.seen
        self.tally.applied[type(command).__name__] += 1
        if isinstance(command, Grant):
            seen["takeover"] += effect is Effect.TAKE and state.event.status is EventStatus.PROCESSING
            seen["token granted again"] += command.token == SETTLED_LAST and state.settled is not None

    def _next(self, part: Part, applied: Applied) -> Part:
        ended = part.ended
        for record in applied.records:
            if record.action is Action.REQUEUED:
                ended = False
                self.tally.seen["requeue"] += 1
            elif record.event.status in TERMINAL:
                if ended:
                    raise Broken("a second terminal entry in one generation")
                ended = True
                self.tally.seen["dead letter"] += record.event.status in DEAD_LETTER
        for handler in self._handlers:
            handler.check_untouched(part, applied.state)
        stopped = still_running(part, applied.state)
        self.tally.seen["handler stopped by others"] += len(stopped - part.stopped)
        return renamed(part._replace(state=applied.state, ended=ended, stopped=stopped))

    def _time(self, part: Part) -> list[Move]:
        state, found = part.state, []
        # A dead letter is due for a requeue with the last lease of its handlers, not before.
        holds = state.event.status in TERMINAL and any(map(live_handler_claim, state.handlers))
        due = state if holds else replace(state, event=replace(state.event, due_ts=min(state.event.due_ts, NOW)))
        if part.stopped:
            found.append(Move("stopped handlers have ended", part._replace(state=due, stopped=frozenset())))
        if due != state and (state.event.due_ts < NOW + LEASE or not part.stopped):
            found.append(Move("retry falls due", part._replace(state=due)))
        if alive(state.event.expires_ts):
            over = replace(state, event=replace(state.event, expires_ts=OVER))
            found.append(Move("lease over", part._replace(state=over), Effect.OVER))
        if part.lock is not None and part.lock.token == LOST and lock_alive(part.lock):
            found.append(Move("lease of the lock over", part._replace(lock=replace(part.lock, expires_ts=OVER))))
        return found


def _writes(token: str, fence: int) -> list[tuple[str, EventCommand]]:
    ref, by = event_claim(token, fence), f"by {token}/{fence}"
    found: list[tuple[str, EventCommand]] = [
        (f"start {by}", Start(ref)),
        (f"renew {by}", Renew(ref, LEASE)),
        (f"complete {by}", Complete(ref)),
        (f"fail {by}", Fail(ref, "boom", RETRY_DELAY)),
        (f"release {by}", Release(ref)),
        (f"cancel {by}", Cancel(ref, "expired")),
    ]
    if (token, fence) in (SHAPES[0], (SETTLED_LAST, FENCE)):
        found += [
            (f"complete with errors {by}", Complete(ref, errors=("of no use",))),
            (f"give up {by}", Fail(ref, "boom", None)),
        ]
    return found


def _effect(before: EventState, command: EventCommand, applied: Applied) -> Effect:
    if any(record.action is Action.PICKED for record in applied.records):
        return Effect.TAKE
    if isinstance(command, Renew):
        return Effect.KEEP
    if before.token is None or applied.state.token is not None:
        return Effect.NONE
    return Effect.LOSE if isinstance(command, Grant | Expire) else Effect.FREE
