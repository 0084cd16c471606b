"""Linearizability of each event: its calls have an order, each within its time, that a small state machine allows.

The search follows Wing and Gong. The machine is written from the contract, not from the lifecycle. Calls of unknown
outcome can have happened or not. The fences show claims whose reply was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from durabus.model.claim import PROCESS_ENDED
from durabus.model.event import Event
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.testing.history.history import FOREVER, Failed, History, RecordedCall, Violation
from durabus.testing.history.subjects import Subject

MAX_NODES = 40_000
SLACK = 1e-6
PENDING, PROCESSING = EventStatus.PENDING.value, EventStatus.PROCESSING.value
DEAD = frozenset(status.value for status in DEAD_LETTER)
SETTLED_AS = {
    "complete": (EventStatus.COMPLETED.value, EventStatus.COMPLETED_WITH_ERRORS.value),
    "fail": (PENDING, EventStatus.FAILED.value),
    "release": (PENDING,),
    "cancel": (EventStatus.CANCELLED.value,),
}


class Op(NamedTuple):
    """The part of a call that is about one event."""

    kind: str
    begins: float
    ends: float
    asked: Subject
    answer: Subject | None
    """The reply; None if the outcome is unknown."""


class MachineState(NamedTuple):
    """The machine. ``settled`` is the newest settlement. Its exact repeat gets the same reply and changes nothing.

    ``abandoned`` is the token of the claim whose lease ended. Until the next grant its settlement still counts.
    """

    status: str | None = None
    fence: int = 0
    token: str | None = None
    expires: float = 0.0
    settled: tuple[str | None, int | None, str | None] | None = None
    generation: int = 0
    abandoned: str | None = None

    def holds(self, asked: Subject) -> bool:
        """Return whether this is the current claim."""
        return self.status == PROCESSING and self.token == asked.token and self.fence == asked.fence

    def settles(self, asked: Subject) -> bool:
        """Return whether this is the current claim, or an abandoned claim without a later one."""
        late = self.status == PENDING and self.abandoned is not None and self.abandoned == asked.token
        return self.holds(asked) or (late and self.fence == asked.fence)


class Search:
    """The search for one event."""

    def __init__(self, history: History, event: Event, ops: Iterable[Op], first_used: Mapping[str, float]) -> None:
        self._history = history
        self._event = event
        self._ops = sorted(_told_once(ops), key=lambda op: (op.ends, op.begins))
        self._named = {
            op.asked.fence: (op.asked.token, first_used.get(op.asked.token or "", 0.0))
            for op in self._ops
            if op.kind == "grant"
        }
        """The token of each granted fence, and when the token was first used."""
        self._taken_over = {
            entry.fence: history.at(entry.at_ts)
            for entry in history.trails.get(event.id, ())
            if (entry.error or "").startswith(PROCESS_ENDED)
        }
        """When the store took each fence back because its process had ended: the lease did not matter."""
        self._required = sum(1 << place for place, op in enumerate(self._ops) if op.answer is not None)
        self._requeued = any(op.kind == "requeue" for op in self._ops)

    def verdict(self) -> bool | None:
        """Return whether there is such an order; None if the search took too many steps."""
        event = self._event
        goal = (event.status.value, event.fence, event.generation)
        todo: list[tuple[int, MachineState, float]] = [(0, MachineState(), 0.0)]
        earliest: dict[tuple[int, MachineState], float] = {(0, MachineState()): 0.0}
        for _ in range(MAX_NODES):
            if not todo:
                return False
            done, state, now = todo.pop()
            if done & self._required == self._required and (state.status, state.fence, state.generation) == goal:
                return True
            for after in self._next(done, state, now):
                # From an earlier time everything is possible that is possible from a later time.
                if after[2] < earliest.get(after[:2], FOREVER):
                    earliest[after[:2]] = after[2]
                    todo.append(after)
        return None

    def _next(self, done: int, state: MachineState, now: float) -> Iterator[tuple[int, MachineState, float]]:
        left = [place for place in range(len(self._ops)) if not done >> place & 1]
        horizon = min((self._ops[place].ends for place in left if self._ops[place].answer is not None), default=FOREVER)
        for after, at in self._by_itself(state, now):
            if at <= horizon + SLACK:
                yield done, after, at
        for place in reversed(left):
            op = self._ops[place]
            at = max(now, op.begins)
            if at <= min(op.ends, horizon) + SLACK:
                for after in self._apply(state, op):
                    yield done | 1 << place, after, at

    def _by_itself(self, state: MachineState, now: float) -> Iterator[tuple[MachineState, float]]:
        """Yield what happens without a call that names the event: its lease ends, or an unknown caller claims it."""
        if state.status == PROCESSING:
            over = max(now, min(state.expires, self._taken_over.get(state.fence, FOREVER)))
            yield state._replace(status=PENDING, token=None, abandoned=state.token), over
            yield state._replace(status=EventStatus.FAILED.value, token=None), over
        elif state.status == PENDING and state.fence < self._event.fence:
            fence = state.fence + 1
            token, since = self._named.get(fence, (f"unknown-{fence}", 0.0))
            at = max(now, since)
            yield (
                state._replace(
                    status=PROCESSING,
                    token=token,
                    fence=fence,
                    expires=at + self._history.shortest_lease,
                    abandoned=None,
                ),
                at,
            )
        elif state.status in DEAD and self._requeued and state.generation < self._event.generation:
            yield state._replace(status=PENDING, generation=state.generation + 1), now

    def _apply(self, state: MachineState, op: Op) -> Iterator[MachineState]:
        match op.kind:
            case "grant":
                # ``_by_itself`` made the grant; the reply must fit the state.
                if state.holds(op.asked):
                    yield state
            case "renew":
                yield from self._renew(state, op)
            case "settle":
                yield from _settle(state, op)
            case _:
                after = _moved(state, op.kind)
                if op.answer is None or _shows(after, op.answer):
                    yield after

    def _renew(self, state: MachineState, op: Op) -> Iterator[MachineState]:
        if op.answer is None:
            return
        if op.answer.lost:
            if not state.holds(op.asked):
                yield state
        elif state.holds(op.asked):
            yield state._replace(expires=self._history.at(op.answer.expires or 0.0))


_KINDS = {
    "add_events": "add",
    "renew_event_claims": "renew",
    "settle_events": "settle",
    "requeue_dead_letters": "requeue",
    "reset_event": "reset",
    "cancel_event": "cancel",
    "cancel_events": "cancel",
    "get_event": "read",
}


REPEATED = ("add", "settle", "requeue", "reset", "cancel")


def _told_once(ops: Iterable[Op]) -> Iterator[Op]:
    """Leave out a call of unknown outcome if an equal one can happen whenever it can: it began before, and ends after.

    ``ops`` come in the order of their begins.
    """
    latest: dict[tuple[str, Subject], float] = {}
    for op in ops:
        if op.answer is None:
            if op.ends <= latest.get((op.kind, op.asked), -1.0) or op.kind == "renew":
                continue  # a longer lease does not make the history impossible
            latest[op.kind, op.asked] = op.ends
        yield op


def _moved(state: MachineState, kind: str) -> MachineState:
    """Return the state after a call that needs no claim."""
    if kind == "add" and state.status is None:
        return MachineState(PENDING)
    if kind == "reset" and state.status == PROCESSING:
        return state._replace(status=PENDING, token=None)
    if kind == "cancel" and state.status in (PENDING, PROCESSING):
        revoked = state.token is not None or state.abandoned is not None
        fence = state.fence + revoked
        return state._replace(status=EventStatus.CANCELLED.value, token=None, abandoned=None, fence=fence)
    if kind == "requeue" and state.status in DEAD:
        return state._replace(status=PENDING, generation=state.generation + 1)
    return state


def _settle(state: MachineState, op: Op) -> Iterator[MachineState]:
    asked, answer = op.asked, op.answer
    this = (asked.token, asked.fence, asked.what)
    if not state.settles(asked):
        repeat = state.settled == this
        if answer is None or answer.lost != repeat:
            yield state
        return
    if answer is not None and answer.lost:
        return
    for status in SETTLED_AS[asked.what or ""]:
        if answer is None or answer.what == status:
            yield state._replace(status=status, token=None, settled=this, abandoned=None)


def _shows(state: MachineState, answer: Subject) -> bool:
    return (state.status, state.fence, state.generation) == (answer.what, answer.fence or 0, answer.generation or 0)


def linearizable(history: History) -> Iterator[Violation]:
    """The calls of every event have an order that explains their replies."""
    ids = {event.event_id: event.id for event in history.finals.values()}
    about: dict[int, list[Op]] = {id_: [] for id_ in history.finals}
    first_used: dict[str, float] = {}
    for call in history.calls:
        if call.invoke.claim is not None:
            first_used.setdefault(call.invoke.claim.token, call.begins)
        for op in _ops(call, repeats=history.settings.repeats):
            named = op.asked if op.answer is None else op.answer
            id_ = named.id or op.asked.id or ids.get(named.event_id or "")
            if id_ in about:
                about[id_].append(op)
    for event in history.finals.values():
        verdict = Search(history, event, about[event.id], first_used).verdict()
        if verdict is None:
            yield Violation("linearizable", f"event {event.id}: not found out within {MAX_NODES} states")
        elif not verdict:
            yield Violation("linearizable", f"event {event.id}: no order of the calls on it explains their replies")


def _ops(call: RecordedCall, *, repeats: bool) -> Iterator[Op]:
    """Yield a call for each of its events. A call that the store can have repeated can also have happened before."""
    ok, kind = call.ok, _KINDS.get(call.invoke.verb)
    if ok is not None:
        for claim in ok.claims:
            yield Op("grant", call.begins, call.ends, claim, claim)
    if isinstance(call.end, Failed):
        return
    yield from _children_added(call)
    if kind is None:
        return
    if ok is not None:
        for asked, answer in call.answered() if ok.subjects else ():  # a read can find nothing
            if repeats and kind in REPEATED:
                yield Op(kind, call.begins, call.ends, asked, None)
            yield Op(kind, call.begins, call.ends, asked, answer)
    elif kind != "read":
        for asked in call.invoke.subjects:
            yield Op(kind, call.begins, call.ends, asked, None)


def _children_added(call: RecordedCall) -> Iterator[Op]:
    """Yield an addition for each child of a settlement that was not refused: the same step stores both."""
    answers = call.ok.subjects if call.ok is not None else ()
    for place, asked in enumerate(call.invoke.subjects):
        if place >= len(answers) or not answers[place].lost:
            for child in asked.children:
                yield Op("add", call.begins, call.ends, Subject(event_id=child), None)
