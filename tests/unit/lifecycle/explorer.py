"""Walks every state that a model can reach, breadth first, and says how it got to the first one that breaks a rule.

The models are in ``event_model`` (one event, its handlers, the lock between them), ``wait_model`` (an event that waits
for another), ``bus_model`` (two events behind one lock) and ``lock_model`` (a lock by itself). All of them drive the
production functions and compose them as a store does: a claim takes its lock in the same step, is renewed only together
with it, and frees it.

**What is in a state.** Only what the store holds. Workers have no state of their own here, because nothing they know
or forget may matter: in every state the network delivers every message that any worker could ever have sent, in any
order, once, twice or never. So each state is tried with the current claim, with the one that was settled last (its
repeat, after a lost reply), with claims that were lost long ago, with an old grant under the current token (a request
that was delivered twice), and with forged mixtures of token and fence. A crashed worker is one that sends no message
any more. This covers two workers and every larger number of them.

**Batches** have no states of their own: a store judges each settlement of a batch alone, under its own token and fence,
so what holds for every single settlement holds for each one of a batch.

**A worker that loses a handler claim** learns of it later. A handler whose claim another worker ended may run until its
lease is over; the walk remembers it until then, and no event may be claimed meanwhile.

**Time** stands still at ``NOW``; that a lease ends, or a retry falls due, is a step that may happen at any moment. A
lease that is over ends exactly at ``NOW``, so the boundary itself is what is walked. Leases that were granted in one
step (a claim and its lock) end in one step, as they do in a store. So do the lease of a handler and the due time that
waits for it.

**Names.** Tokens and fences only matter by being equal or not, and fences by being larger. After each step they are
renamed (the newest fence is always ``FENCE``), error texts are blanked and handler attempts levelled. That makes the
state space finite although fences grow for ever. What renaming forgets is checked in the step before it is forgotten:
a fence only rises, an attempt counts one, the log folds to the state.

**Bounds.** Two generations, ``max_attempts=2``; within them nothing is cut off. An event with no handlers, with one and
with two (parallel and serial) is walked state by state; workers that also say ``start`` are walked with up to one
handler, because it doubles the states and touches no handler. Two events with two handlers each have some hundred
million states, but share nothing except the lock: ``bus_model`` first merges the states of one event that no lock can
distinguish, then walks all pairs of the merged ones. That the merging loses no pair is itself tested, on events without
handlers, whose pairs are walked both ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)

NOW = 100.0
LEASE = 10.0
OVER = NOW
FENCE = 10
"""The name of the newest fence of an event, handler or lock that ever had one."""


RENEWS_WITHOUT_LOCK = "renews a claim although its lock is lost"
LEAVES_LOCK_AS_FOUND = "does not renew the lock that the token has already"
"""Ways to compose claim and lock badly, to show that the walk finds them."""


class Broken(Exception):
    """A step that broke a rule."""


class Violation(AssertionError):
    """A rule is broken; the trace is a shortest way to where it happens."""

    def __init__(self, rule: str, trace: list[str]) -> None:
        super().__init__("\n  ".join([rule, *trace]))
        self.rule = rule
        self.trace = trace


class Model(Protocol[State]):
    """A model that can be walked."""

    @property
    def trying(self) -> str:
        """The step that is being tried: the last line of a trace."""
        ...

    def start(self) -> State:
        """The first state."""
        ...

    def moves(self, state: State) -> Iterable[tuple[str, State]]:
        """Every step from ``state`` that changes it, by name. Raises ``Broken`` for one that breaks a rule."""
        ...

    def check(self, state: State) -> None:
        """Raises ``Broken`` if ``state`` itself breaks a rule."""
        ...


class Tally:
    """What happened on a walk, so that a test can check that the walk met every kind of step."""

    def __init__(self) -> None:
        self.applied: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """The number of takeovers, stale writes, dead letters and the like."""


class Walk(Generic[State]):
    """All states reachable from ``model.start()``, or those within ``depth`` steps of it."""

    def __init__(self, model: Model[State], *, depth: int | None = None) -> None:
        self._model = model
        self._came_from: dict[State, State | None] = {}
        self._at = model.start()
        self.depth = 0
        self.steps = 0
        frontier: list[State] = []
        try:
            frontier = self._arrive(self._at, None)
            while frontier and self.depth != depth:
                frontier = self._next(frontier)
                self.depth += bool(frontier)
        except Broken as broken:
            last = [model.trying] if model.trying else []
            raise Violation(str(broken), self._trace(self._at) + last) from None
        self.complete = not frontier

    @property
    def states(self) -> AbstractSet[State]:
        """Return all states."""
        return self._came_from.keys()

    def _next(self, frontier: list[State]) -> list[State]:
        reached: list[State] = []
        known = self._came_from
        for state in frontier:
            self._at = state
            for _, after in self._model.moves(state):
                self.steps += 1
                if after not in known:
                    reached += self._arrive(after, state)
        return reached

    def _arrive(self, state: State, source: State | None) -> list[State]:
        self._came_from[state] = source
        try:
            self._model.check(state)
        except Broken:
            self._at = state
            raise
        return [state]

    def _trace(self, state: State) -> list[str]:
        source = self._came_from[state]
        if source is None:
            return []
        names = (name for name, after in self._model.moves(source) if after == state)
        return [*self._trace(source), next(names, "?")]
