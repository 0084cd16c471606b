"""Two events whose claims exclude each other by one lock, as a store composes it.

The lock is ``event:global`` and the events are of two buses. That is the harder case: a claim on a serial bus first
takes every event of this bus whose lease is over, so a late worker finds its claim gone. Here the event stays with the
late worker while the lock goes to another, and only the lock can refuse the renewal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace
from tests.unit.lifecycle.event_model import EventModel
from tests.unit.lifecycle.explorer import (
    FENCE,
    LEASE,
    LEAVES_LOCK_AS_FOUND,
    NOW,
    OVER,
    RENEWS_WITHOUT_LOCK,
    Broken,
    Tally,
)
from tests.unit.lifecycle.lock_model import alive, lock_claim, renamed_lock
from tests.unit.lifecycle.part import LOST, NEW, Effect, Part, live_claim

from durabus.lifecycle import handlers
from durabus.lifecycle.state import LockState, Refused
from durabus.model.claim import event_lock_key
from durabus.model.statuses import EventMode

KEY = event_lock_key(EventMode.GLOBAL_SERIAL, "") or ""

Step = tuple[str, int, Effect]
Pair = tuple[int, int, LockState | None]


class Events(Protocol):
    """The life of one event as a graph with numbered states."""

    def steps(self, number: int) -> Sequence[Step]:
        """Every step from this state."""
        ...

    def live(self, number: int) -> bool:
        """Whether the event is under a claim whose lease is not over."""
        ...


class EventGraph:
    """An ``EventModel`` as a graph; each step is computed, and checked, once."""

    def __init__(self, model: EventModel) -> None:
        self.model = model
        self._parts: list[Part] = []
        self._numbers: dict[Part, int] = {}
        self._steps: dict[int, list[Step]] = {}
        self._number(model.start())

    @property
    def trying(self) -> str:
        """The step that is being tried."""
        return self.model.trying

    def __len__(self) -> int:
        return len(self._parts)

    def start(self) -> int:
        """Return the state of an event that was just published."""
        return 0

    def check(self, number: int) -> None:
        """Check the rules about a state by itself."""
        self.model.check(self._parts[number])

    def moves(self, number: int) -> list[tuple[str, int]]:
        """Return every step from this state, for a walk through the graph itself."""
        return [(name, after) for name, after, _ in self.steps(number)]

    def steps(self, number: int) -> Sequence[Step]:
        """Every step from this state."""
        if number not in self._steps:
            moves = self.model.effects(self._parts[number])
            self._steps[number] = [(move.name, self._number(move.after), move.effect) for move in moves]
        return self._steps[number]

    def live(self, number: int) -> bool:
        """Whether the event is under a claim whose lease is not over."""
        return live_claim(self._parts[number].state) is not None

    def _number(self, part: Part) -> int:
        if part not in self._numbers:
            self._numbers[part] = len(self._parts)
            self._parts.append(part)
        return self._numbers[part]


class MergedGraph:
    """A graph in which states that no lock can distinguish are one: the coarsest such merging, by refinement.

    Two states stay together if both are live or both are not, and if every step of one has a step of the other that
    does the same to the lock and leads to the same class. Steps within a class that leave the lock alone do not count:
    from outside nothing happens.
    """

    def __init__(self, graph: EventGraph) -> None:
        numbers = range(len(graph))
        classes = [int(graph.live(number)) for number in numbers]
        count = 0
        while count < (count := len(set(classes))) or count == 0:
            marks = [
                (own := classes[number], frozenset(_seen_from_outside(graph.steps(number), classes, own)))
                for number in numbers
            ]
            names = {mark: name for name, mark in enumerate(dict.fromkeys(marks))}
            classes = [names[mark] for mark in marks]
        self.class_of = classes
        self._examples = {name: number for number, name in reversed(list(enumerate(classes)))}
        self._graph = graph

    def __len__(self) -> int:
        return len(self._examples)

    def steps(self, number: int) -> Sequence[Step]:
        """Return every step from this class, by the example of one of its states."""
        found = self._graph.steps(self._examples[number])
        distinct = {(self.class_of[after], effect): name for name, after, effect in found}
        return [(name, after, effect) for (after, effect), name in distinct.items()]

    def live(self, number: int) -> bool:
        """Whether the event is under a claim whose lease is not over."""
        return self._graph.live(self._examples[number])


def _seen_from_outside(steps: Sequence[Step], classes: list[int], own: int) -> Iterator[tuple[Effect, int]]:
    for _, after, effect in steps:
        if effect is not Effect.NONE or classes[after] != own:
            yield effect, classes[after]


class BusModel:
    """Pairs of events and their lock. ``careless`` names what a badly composed store leaves out."""

    def __init__(self, events: Events, *, careless: str = "") -> None:
        self.tally = Tally()
        self.trying = ""
        self._events = events
        self._careless = careless
        self._known: dict[tuple[LockState | None, Effect, str, str], LockState | Refused | None] = {}

    def start(self) -> Pair:
        """Return the first state: both events are just published, the lock was never taken."""
        return (0, 0, None)

    def check(self, pair: Pair) -> None:
        """Check that there are never two valid claims, and none without the lock."""
        *numbers, lock = pair
        valid = [str(at) for at, number in enumerate(numbers) if isinstance(number, int) and self._events.live(number)]
        if len(valid) > 1:
            raise Broken("two serial events have a valid claim each")
        if valid and (lock is None or not alive(lock) or lock.token != valid[0]):
            raise Broken("a valid claim goes without its lock")

    def moves(self, pair: Pair) -> list[tuple[str, Pair]]:
        """Return every step of either event that the lock allows."""
        first, second, lock = pair
        found: list[tuple[str, Pair]] = []
        for name, after, effect in self._events.steps(first):
            found += [(f"0: {name}", (after, second, freed)) for freed in self._locks(lock, effect, "0")]
        for name, after, effect in self._events.steps(second):
            found += [(f"1: {name}", (first, after, freed)) for freed in self._locks(lock, effect, "1")]
        return found

    def _locks(self, lock: LockState | None, effect: Effect, owner: str) -> list[LockState | None]:
        """Return the lock after the step, unless it forbids it. A request may be the late double of a lost one."""
        if effect is Effect.NONE:
            return [lock]
        tokens = [NEW]
        if effect is Effect.TAKE and lock is not None and lock.token == LOST:
            tokens.append(LOST)
        found: list[LockState | None] = []
        for token in tokens:
            case = (lock, effect, owner, token)
            if case not in self._known:
                self._known[case] = self._lock_after(*case)
            after = self._known[case]
            verb = {Effect.TAKE: "claim_lock", Effect.KEEP: "renew_lock", Effect.FREE: "release_lock"}.get(
                effect, "time"
            )
            if isinstance(after, Refused):
                self.tally.refused[verb] += 1
            else:
                self.tally.applied[verb] += 1
                found.append(after)
        return found

    def _lock_after(self, lock: LockState | None, effect: Effect, owner: str, token: str) -> LockState | Refused | None:
        own = lock is not None and lock.token == owner
        match effect:
            case Effect.TAKE:
                return self._taken(lock, owner, token)
            case Effect.KEEP:
                kept = handlers.renew_lock(lock, lock_claim(owner, FENCE, KEY), LEASE, NOW)
                return lock if isinstance(kept, Refused) and self._careless == RENEWS_WITHOUT_LOCK else kept
            case Effect.FREE:
                freed = handlers.release_lock(lock, lock_claim(owner, FENCE, KEY))
                return lock if isinstance(freed, Refused) else freed
            case Effect.LOSE if lock is not None and own:
                return renamed_lock(lock, LOST)
            case Effect.OVER if lock is not None and own:
                return replace(lock, expires_ts=OVER)
            case _:
                return lock

    def _taken(self, lock: LockState | None, owner: str, token: str) -> LockState | Refused:
        """Return the lock, taken or renewed: a token may have it from a lost claim, but needs it for the new one."""
        took = handlers.claim_lock(lock, key=KEY, worker_id="w", token=token, lease=LEASE, fence=FENCE + 1, now=NOW)
        if isinstance(took, Refused):
            return took
        if self._careless != LEAVES_LOCK_AS_FOUND:
            renewed = handlers.renew_lock(took, lock_claim(token, took.fence, KEY), LEASE, NOW)
            if isinstance(renewed, Refused):
                raise Broken("the lock just taken cannot be renewed")
            took = renewed
        return renamed_lock(took, owner)
