"""Waits of an event: a worker releases or fails it with a wait, and at any moment the awaited event may be stored.

A store composes the rules as here. The step that stores a wait first looks for an event that is stored already. The
step that stores an event meets the waits for it. One wait and one awaited event are enough: waits do not know of each
other, and only the first event counts.
"""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.lifecycle.event_rules import REPEATED
from tests.unit.lifecycle.explorer import NOW, Broken, Tally
from tests.unit.lifecycle.part import SHAPES, Move, Part, event_claim, find_row, renamed

from durabus.lifecycle import transition, waits
from durabus.lifecycle.state import EventCommand, EventState
from durabus.model.event import Event, new_event
from durabus.model.settlement import Fail, Release
from durabus.model.statuses import TERMINAL, EventStatus, ResultStatus
from durabus.model.wait import new_wait, waiting

STEP = "h1 > wait_for"
BUS, TYPE = "orders", "payment.settled"
WAIT = waiting(STEP, new_wait(BUS, TYPE, {"order": 7}, NOW + 1))
WAIT_DELAY = 5.0

STORES_WAIT_UNSEEN = "does not look for stored events when it stores a wait"
"""A way to compose the rules badly, to show that the walk finds it."""


def _stored(id_: int, order: int = 7, at: float = NOW) -> Event:
    new = new_event(TYPE, {"order": order}, bus=BUS, event_id=f"0190a000-0000-7000-8000-{id_:012}")
    return transition.publish(new, id_, at).state.event


AWAITED = _stored(2)
SECOND_AWAITED = _stored(3)
OTHERS = (_stored(1), _stored(2, order=8), _stored(2, at=NOW + 1))
"""Events that meet no wait: the waiting event itself, one with another field, one that comes too late."""


class WaitModel:
    """The wait of one handler of the event. ``careless`` names what a badly composed store leaves out."""

    def __init__(self, tally: Tally, careless: str) -> None:
        self.trying = ""
        self._tally = tally
        self._careless = careless

    def commands(self) -> list[tuple[str, EventCommand]]:
        """Return the settlements that bring the wait, by the holder of the claim or late."""
        ref = event_claim(*SHAPES[0])
        return [
            ("release with a wait", Release(ref, WAIT_DELAY, (WAIT,))),
            ("fail with a wait", Fail(ref, "boom", WAIT_DELAY, (WAIT,))),
        ]

    def composed(self, part: Part, command: EventCommand) -> EventCommand:
        """Return the settlement as a store applies it: a new wait looks for an event that is stored already."""
        if not isinstance(command, Release | Fail) or self._careless == STORES_WAIT_UNSEEN:
            return command
        new = [result.handler_id for result, _ in waits.new_waits(part.state, command)]
        return waits.with_met(command, dict.fromkeys(new, AWAITED)) if part.awaited_is_stored else command

    def moves(self, part: Part) -> list[Move]:
        """Store the awaited event. Its wait is met in the same step; nothing else changes."""
        before = part.state
        for self.trying, event in (("an event is stored that nobody awaits", other) for other in OTHERS):
            if waits.meet(before, STEP, event) is not None:
                raise Broken("a wait is met by an event that does not match it")
        if part.awaited_is_stored:
            self.trying = "a second event is stored"
            if waits.meet(before, STEP, SECOND_AWAITED) is not None:
                raise Broken("a wait is met twice")
            return []
        self.trying = "the awaited event is stored"
        after = waits.meet(before, STEP, AWAITED) or before
        self._tally.applied["meet"] += after is not before
        self._tally.refused["meet"] += after is before
        self._tally.seen["wait of a claimed event met"] += after is not before and before.token is not None
        self._tally.seen["wait of an abandoned event met"] += after is not before and before.abandoned is not None
        _check_met(before, after)
        return [Move(self.trying, renamed(part._replace(state=after, awaited_is_stored=True)))]

    def check_step(self, before: EventState, command: EventCommand, after: EventState, how: str) -> None:
        """Check what must hold for the wait over every command on its event."""
        old, row = find_row(before, STEP), find_row(after, STEP)
        if old is not None and old.result.status is ResultStatus.KEPT and row != old:
            raise Broken("a wait was met, and its event is lost")
        if how == REPEATED or not isinstance(command, Release) or not command.results:
            return
        if row is not None and row.result.status is ResultStatus.KEPT and after.event.due_ts > NOW:
            raise Broken("a release with a wait that is met is not due at once")
        self._tally.seen["wait met while its handler ran"] += old is not None and old.result.status is ResultStatus.KEPT


def check_waits(part: Part) -> None:
    """Check the rules about the wait in a state by itself."""
    row = find_row(part.state, STEP)
    if row is None or row.result.status is not ResultStatus.WAITING:
        return
    if part.state.event.status in TERMINAL:
        raise Broken("an event that has ended still waits")
    if part.awaited_is_stored:
        raise Broken("the awaited event is stored, and the wait is not met")


def _check_met(before: EventState, after: EventState) -> None:
    """Check that an awaited event meets the wait, makes its event due, and changes nothing else."""
    old, row = find_row(before, STEP), find_row(after, STEP)
    if old is None or old.result.status is not ResultStatus.WAITING:
        if after != before:
            raise Broken("an event was stored that nobody awaits, and the state changed")
        return
    if row is None or row.result.status is not ResultStatus.KEPT:
        raise Broken("the awaited event is stored, and the wait is not met")
    if before.event.status is EventStatus.PENDING and after.event.due_ts > NOW:
        raise Broken("a wait was met, and its event is not due")
    same = replace(after, event=replace(after.event, due_ts=before.event.due_ts), handlers=before.handlers)
    if same != before or (before.event.status is not EventStatus.PENDING and after.event != before.event):
        raise Broken("a wait that is met changes more than its result and the due time")
